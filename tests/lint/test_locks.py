# SPDX-License-Identifier: Apache-2.0
"""prefetch/engine.h: no I/O under the engine's lock. The index is a mapped file, so a look into it can wait for a disk.
prefetch/README.md: which files lock by hand."""

import re

from lint import sources

FUNCTION = re.compile(r"^[a-z][^;{}]*?\b(\w+)\([^;{}]*\)\n\{\n(.*?)^\}", re.M | re.S)
STEP = re.compile(r"^(\t*)\}|^(\t*)prefetch_lock_for_scope\(|prefetch_(un)?lock\(|\b(\w+)\(", re.M)
# What stands in private memory.
HARMLESS = {"shard_index_info", "shard_index_dataset"}


def functions():
    """(file, name) -> body."""
    return {(file, name): body for file in sources.c_files() if re.fullmatch(r"(prefetch|cache)/\w+\.c", file)
            for name, body in FUNCTION.findall(sources.text(file))}


def calls(body):
    """(name, whether the engine's lock is held), in the order of the text."""
    held, scope = False, None
    for step in STEP.finditer(body):
        end, begin, unlock, name = step.groups()
        if name:
            yield name, held
        elif begin is not None:
            held, scope = True, begin
        elif end is None:
            held = not unlock
        elif scope and len(end) < len(scope):
            held, scope = False, None


def test_the_index_is_not_looked_at_under_the_engine_s_lock():
    bodies = functions()
    assert len(bodies) > 100
    # Functions that look into the index, themselves or by what they call.
    slow = set()

    def is_slow(file, call):
        if re.match(r"shard_(index|view|epoch)_", call):
            return call not in HARMLESS
        if (file, call) in bodies:
            return (file, call) in slow
        return any(name == call for _, name in slow)

    more = True
    while more:
        new = {(file, name) for (file, name), body in bodies.items() if (file, name) not in slow
               and any(is_slow(file, call) for call, _ in calls(body))}
        slow |= new
        more = bool(new)
    assert {("prefetch/prefetch.c", "prefetch_demand"), ("cache/ledger.c", "cache_ledger_cost")} <= slow
    wrong = [f"{file}: {name} calls {call} with the lock held" for (file, name), body in bodies.items()
             for call, held in calls(body) if held and is_slow(file, call)]
    assert not wrong, "\n".join(wrong)


def test_the_readme_names_the_files_that_lock_by_hand():
    files = {name for name in sources.c_files() if re.fullmatch(r"prefetch/\w+\.c", name)
             and re.search(r"\b(prefetch|pthread_mutex)_unlock\(", sources.text(name))}
    sentence = re.search(r"files also unlock and lock by hand: (.*?)\. ", sources.text("prefetch/README.md"), re.S)
    assert files == {f"prefetch/{name}" for name in re.findall(r"`(\w+\.c)`", sentence.group(1))}
