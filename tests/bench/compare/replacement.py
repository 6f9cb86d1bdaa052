# SPDX-License-Identifier: Apache-2.0
"""Bytes that must come from disk for a known order under a memory limit: the best possible, and LRU, on 4 KiB pages.

The pages of a file are used one after the other and next used together, so files are kept with a count of their pages.
"""
import collections
import heapq

PAGE = 4096


def _pages(size):
    return -(-size // PAGE)


def belady(trace, sizes, capacity, epochs):
    """Farthest next use: bytes read in the first `epochs` lists of `trace`, the later ones being known."""
    uses = [name for part in trace for name in part]
    count = sum(len(part) for part in trace[:epochs])
    next_use, last = [0] * len(uses), {}
    for i in range(len(uses) - 1, -1, -1):
        next_use[i] = last.get(uses[i], len(uses) + 1)
        last[uses[i]] = i
    room, held, farthest, missed = capacity // PAGE, {}, [], 0
    for i in range(count):
        name, pages = uses[i], _pages(sizes[uses[i]])
        have = held.get(name, 0)
        missed += pages - have
        room -= pages - have
        held[name] = pages
        heapq.heappush(farthest, (-next_use[i], name))
        while room < 0:  # the file just read may be the farthest: then it is not kept
            use, victim = farthest[0]
            drop = min(held.get(victim, 0), -room)
            room += drop
            held[victim] = held.get(victim, 0) - drop
            if held[victim] == 0:
                heapq.heappop(farthest)
    return missed * PAGE


def lru(trace, sizes, capacity):
    room, held, missed = capacity // PAGE, collections.OrderedDict(), 0
    for name in (name for part in trace for name in part):
        pages = _pages(sizes[name])
        have = held.pop(name, 0)
        missed += pages - have
        room -= pages - have
        held[name] = pages
        while room < 0:
            victim, kept = held.popitem(last=False)
            drop = min(kept, -room)
            room += drop
            if kept > drop:
                held[victim] = kept - drop
                held.move_to_end(victim, last=False)
    return missed * PAGE
