# SPDX-License-Identifier: Apache-2.0
"""Which files an item opens, learned from a few items that were read: by the lists of the dataset, or by the name of
the first file.

    column    file k of item i is in a list, at i                  images[i], masks[i], samples[i]["frames"][k]
    part      the same, at a part of i, which is a tuple             images[i[0]], images[i[1]], images[i[2]]
    position  file k is in a list at a number that depends on i    frames[i + k], frames[16 * i + k], frames[starts[i]]
    run       the files are a part of a list; its length varies    frames[start:start + length], samples[i]["frames"]
    name      the name of the first file tells file k              images/7.jpg and masks/7.png, 0007.jpg and 0008.jpg

A rule must explain all items that were read.  Only the first and the last item of the dataset may differ, because
windows are cut there."""

import os
import sys
from collections import Counter, namedtuple
from itertools import combinations

from .dataset_lists import Lists, as_int, text_of
from .name_rules import named_after

FILES_MAX = 128  # files of an item that are looked for
NAMED_MAX = 16  # lists whose texts are held against paths by a rule
RUN_MAX = 1024  # files of an item whose number a list tells
ENTRIES_MAX = 10_000_000  # entries of lists that are searched for paths
POSITIONS_MIN = 3  # items that tell how a position depends on the index
FACTOR_MIN = 5  # numbers of a list that tell by which factor a position depends on them
STREAMS_MAX = 3  # lists that the files of a run come from, one after the other or in turn
ASK = object()  # in place of a first file that the dataset must be asked for

Seen = namedtuple("Seen", "lists index paths")  # an item that was read: of which leaf, its index there, what it opened


def learn(seen):
    """Returns the function from the Lists of a leaf to the function from an index to [path, None, ASK or rule, ...].

    A rule is a function of the first path.  The leaves are of one kind: their lists have the same names."""
    sources, inner = _Sources(seen), [one for one in seen if not _is_end(one)]
    if len({len(one.paths) for one in inner}) > 1 and len(inner) >= POSITIONS_MIN:
        run = _run(sources, inner)
        if run:
            return run
    counts = Counter(len(one.paths) for one in seen)
    count = min(max(counts, key=lambda n: (counts[n], n)), FILES_MAX)
    steps = []
    for k in range(count):
        having = [one for one in seen if len(one.paths) >= count and one.paths[k]]
        step = _column(having, k) or _part(having, k) or _position(sources, having, k)
        if step is None:
            step = _name(having, k) if k else lambda lists: lambda i: ASK
        steps.append(step or (lambda lists: lambda i: None))

    def made(lists):
        of_item = [step(lists) for step in steps]
        return lambda i: [told(one, i) for one in of_item]

    return made


def told(function, i):
    """function(i), or None for an item that is not as those that were read."""
    try:
        return function(i)
    except Exception:
        return None


def _is_end(one):
    return type(one.index) is int and one.index in (0, one.lists.size - 1)


def _fitting(having, fit):
    """fit() of all these items, or of those that are not at an end of the dataset."""
    inner = [one for one in having if not _is_end(one)]
    return fit(having) or (fit(inner) if POSITIONS_MIN <= len(inner) < len(having) else None)


def _column(having, k):
    """A list that has the paths themselves, or else one of the first lists, if a rule makes the paths of its texts."""
    names = list(having[0].lists.columns) if having else []
    for rule_of, some in (_same, names), (named_after, names[:NAMED_MAX]):
        for name in some:
            try:
                rule = rule_of([(text_of(one.lists.columns[name](one.index)), one.paths[k]) for one in having])
            except Exception:  # the dataset has other indices, or no text
                continue
            if rule and (len(having) > 1 or rule("") == ""):
                return _column_made(name, rule)
    return None


def _part(having, k):
    """A column at one of the parts of the index."""
    sizes = {len(one.index) if isinstance(one.index, tuple) else 0 for one in having}
    for j in range(sizes.pop() if len(sizes) == 1 else 0):
        step = _column([one._replace(index=one.index[j]) for one in having], k)
        if step:
            return _of_part(step, j)
    return None


def _of_part(step, j):
    def made(lists):
        path = step(lists)
        return lambda i: path(i[j])
    return made


def _same(pairs):
    return (lambda path: path) if all(given == made for given, made in pairs) else None


def _column_made(name, rule):
    def made(lists):
        column = lists.columns[name]

        def path(i):
            text = text_of(column(i))
            return text and rule(text)
        return path

    return made


def _name(having, k):
    def fit(items):
        return named_after([(one.paths[0], one.paths[k]) for one in items]) if len(items) > 1 else None

    rule = _fitting([one for one in having if one.paths[0]], fit)
    return rule and (lambda lists: lambda i: rule)


# Positions in lists


class _Source:
    """A list that may tell files by positions: a table of the leaf, or a list of texts in the row of an item.

    name      of the table, or of the rows
    selector  None: a table.  Else the row is that of the index, (), or of the list of numbers with this name"""

    def __init__(self, name, selector=None):
        self.name, self.selector = name, selector

    def of(self, lists):
        """The function from an index to (function from a position to a text, number of positions)."""
        if self.selector is None:
            table = lists.tables[self.name]
            return lambda i: table
        get, _ = lists.rows[self.name]
        number = lists.numbers[self.selector] if self.selector else as_int

        def row(i):
            texts = get(number(i))
            return texts.__getitem__, len(texts)

        return row

    def find(self, seen):
        """Returns {path: (position, text)} for each of these items, as far as the list has their paths."""
        return self._find_in_table(seen) if self.selector is None else [self._find_in_row(one) for one in seen]

    def _find_in_table(self, seen):
        found = [{} for _ in seen]
        for lists in {id(one.lists): one.lists for one in seen}.values():
            mine = [one.paths if one.lists is lists else () for one in seen]
            get, size = lists.tables[self.name]
            for k, there in enumerate(self._search(get, size, mine)):
                found[k].update(there)
        return found

    def _find_in_row(self, one):
        get, size = self.of(one.lists)(one.index)
        return self._search(get, size, [one.paths])[0]

    @staticmethod
    def _search(get, size, paths_of_items):
        """A list may have paths, or the ends of paths, with or without suffix: the longest one that is found counts."""
        wanted = {}
        for paths in paths_of_items:
            for path in filter(None, paths):
                for text in _ends(path):
                    wanted.setdefault(text, set()).add(path)
        best = {}
        for position in range(size):
            text = get(position)
            text = text if type(text) is str else text_of(text)
            for path in wanted.get(text, ()):
                if path not in best or len(best[path][1]) < len(text):
                    best[path] = position, text
        return [{path: best[path] for path in paths if path in best} for paths in paths_of_items]


def _ends(path):
    parts = path.split("/")
    for k in range(len(parts)):
        end = "/".join(parts[k:])
        yield end
        yield os.path.splitext(end)[0]


class _Sources:
    """The lists that have paths of these items: pairs of a _Source and {id of an item: {path: (position, text)}}.  They
    are searched when they are needed first."""

    def __init__(self, seen):
        self._seen, self._found = seen, None

    def __iter__(self):
        if self._found is None:
            self._found = list(self._search()) if self._may_tell() else []
        return iter(self._found)

    def _may_tell(self):
        return (len(self._seen) >= POSITIONS_MIN and max(len(one.paths) for one in self._seen) > 1
                and all(type(one.index) is int for one in self._seen))

    def _search(self):
        lists, left = self._seen[0].lists, ENTRIES_MAX
        sources = [(_Source(name), size) for name, (_, size) in lists.tables.items()]
        for name, (_, size) in lists.rows.items():
            sources += [(_Source(name, number), 0) for number in ([()] if size == lists.size else lists.numbers)]
        for source, size in sources:
            places = _places(source, self._seen) if size <= left else None
            left -= size if size <= left else 0
            if places and sum(map(bool, places)) >= POSITIONS_MIN:
                yield source, {id(one): place for one, place in zip(self._seen, places)}


def _places(source, seen):
    try:
        return source.find(seen)
    except Exception as error:  # a list of the dataset's own kind
        if os.environ.get("DDPFS_DEBUG", "") not in ("", "0"):
            print(f"ddpfs: the list {source.name} is not searched for paths: {error!r}", file=sys.stderr, flush=True)
        return None


def _positions(source, places, items, paths):
    """Returns (positions, sizes of the lists, rule from a text to a path), or None."""
    found = [places[id(one)].get(path) for one, path in zip(items, paths)]
    if len(items) < POSITIONS_MIN or None in found:
        return None
    rule = named_after([(text, path) for (_, text), path in zip(found, paths)])
    sizes = [source.of(one.lists)(one.index)[1] for one in items]
    return rule and ([position for position, _ in found], sizes, rule)


def _number_lists(lists):
    """The lists of numbers that a position may depend on: the index itself, too."""
    return {(): as_int, **lists.numbers}


def _line(items, at, sizes, constant):
    """How positions depend on the index or on a list of numbers: (name of the list or None, a, b, wraps), or None.

    The position is a * number + b.  It stays within the list, or wraps around its ends."""
    if constant and len(set(at)) == 1:
        return None, 0, at[0], False
    for name in _number_lists(items[0].lists):
        numbers = [told(_number_lists(one.lists)[name], one.index) for one in items]
        if None in numbers or len(set(numbers)) < POSITIONS_MIN:
            continue
        slopes = Counter((q2 - q1) // (x2 - x1) for (x1, q1), (x2, q2) in combinations(zip(numbers, at), 2)
                         if x1 != x2 and (q2 - q1) % (x2 - x1) == 0)
        for a, _ in slopes.most_common(2):
            if name and a != 1 and len(set(numbers)) < FACTOR_MIN:
                continue
            for b in {q - a * x for x, q in zip(numbers, at)} if a else ():
                for wraps in False, True:
                    if all(_within(a * x + b, size, wraps) == q for x, q, size in zip(numbers, at, sizes)):
                        return name, a, b, wraps
    return None


def _within(position, size, wraps):
    return position % size if wraps else min(max(position, 0), size - 1)


def _start(line, lists):
    """The function from an index to a position before it is put within the list."""
    name, a, b, _ = line
    number = (lambda i: 0) if name is None else _number_lists(lists)[name]
    return lambda i: a * number(i) + b


def _position(sources, having, k):
    def fit(items):
        for source, places in sources:
            found = _positions(source, places, items, [one.paths[k] for one in items])
            line = found and _line(items, *found[:2], source.selector is not None)
            if line:
                return source, line, found[2]
        return None

    found = _fitting(having, fit)
    if not found:
        return None
    source, line, rule = found

    def made(lists):
        of_item, start = source.of(lists), _start(line, lists)

        def path(i):
            get, size = of_item(i)
            return rule(text_of(get(_within(start(i), size, line[3]))))
        return path

    return made


# Runs


def _run(sources, seen):
    """The rule for items whose number of files a list tells, or None."""
    for streams in range(1, STREAMS_MAX + 1):
        if any(len(one.paths) % streams for one in seen):
            continue
        for in_turn in (True, False) if streams > 1 else (True,):
            steps = [_stream(sources, seen, [_share(one.paths, k, streams, in_turn) for one in seen])
                     for k in range(streams)]
            if all(steps):
                return _joined(steps, in_turn)
    return None


def _share(paths, k, streams, in_turn):
    size = len(paths) // streams
    return paths[k::streams] if in_turn else paths[k * size:(k + 1) * size]


def _joined(steps, in_turn):
    def made(lists):
        streams = [step(lists) for step in steps]

        def paths(i):
            parts = [told(stream, i) or [] for stream in streams]
            return [path for together in zip(*parts) for path in together] if in_turn else sum(parts, [])
        return paths

    return made


def _stream(sources, seen, paths):
    """A part of a list: paths has those of each item."""
    for source, places in sources:
        first = _positions(source, places, seen, [some[0] for some in paths])
        line = first and _line(seen, *first[:2], source.selector is not None)
        at = line and [[places[id(one)].get(path) for path in some] for one, some in zip(seen, paths)]
        if not at or any(None in some for some in at):
            continue
        steps = {b[0] - a[0] for some in at for a, b in zip(some, some[1:])}
        if len(steps) != 1 or steps == {0}:
            continue
        step, = steps
        ends = [size - q if step > 0 else q + 1 for q, size in zip(*first[:2])]
        count = _count(seen, list(map(len, paths)), abs(step), ends if source.selector is not None else None)
        if count:
            return _stream_made(source, line, step, count, first[2])
    return None


def _count(seen, counts, step, to_the_end):
    """How the number of files is told: a function from Lists to the function from (index, what is left of the list)."""
    def of(left):
        return -(-left // step)

    if to_the_end and list(map(of, to_the_end)) == counts:
        return lambda lists: lambda i, left: of(left)
    names = list(seen[0].lists.numbers)
    for pair in [(name,) for name in names] + [pair for two in combinations(names, 2) for pair in (two, two[::-1])]:
        def left_of(lists, pair=pair):
            numbers = [lists.numbers[name] for name in pair]
            return lambda i: numbers[-1](i) - (numbers[0](i) if len(numbers) > 1 else 0)

        found = [told(left_of(one.lists), one.index) for one in seen]
        more = {count - of(left) for count, left in zip(counts, found)} if None not in found else ()
        if len(more) == 1:
            return lambda lists, left_of=left_of, more=more.pop(): (
                lambda own: lambda i, _: of(own(i)) + more)(left_of(lists))
    return None


def _stream_made(source, line, step, count, rule):
    def made(lists):
        of_item, start, count_of = source.of(lists), _start(line, lists), count(lists)

        def paths(i):
            get, size = of_item(i)
            begin = _within(start(i), size, line[3])
            n = min(count_of(i, size - begin if step > 0 else begin + 1), RUN_MAX)
            return [rule(text_of(get(at))) for at in range(begin, begin + n * step, step) if 0 <= at < size]
        return paths

    return made
