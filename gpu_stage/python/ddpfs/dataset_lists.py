# SPDX-License-Identifier: Apache-2.0
"""The lists that datasets keep of their items: paths and names, numbers, and lists of paths.

A dataset may be made of others.  Its leaves are those that open the files: what is in Subset and ConcatDataset, and in
a dataset that only hands on the items of another one."""

import os
import sys
from bisect import bisect_right
from itertools import accumulate, islice, zip_longest
from operator import index as as_int

LISTS = ("samples", "imgs", "files", "paths", "data")  # attributes that hold a path, or (path, ...), an item
DEPTH = 3  # of datasets within datasets, and of lists within the items of a list
PARTS_MAX = 128  # parts of an item of a list that are looked at
NUMBERS_MAX = 32  # lists of numbers that are used


def _size(dataset):
    try:
        return len(dataset)
    except Exception:  # a dataset need not have a length
        return -1


class _Attribute(str):
    """A key that is the name of an attribute."""


def is_path(value):
    return isinstance(value, (str, bytes, os.PathLike))


def text_of(value):
    return os.fsdecode(value) if is_path(value) else None


def _first(item):
    """The path of an item of a list: the item, or its first part."""
    if is_path(item):
        return item
    part = item[0] if isinstance(item, (tuple, list)) and item else None
    return part if is_path(part) else None


def innermost(dataset):
    """The dataset within torch's Subset, however deep, and the function from an index to the one that it has there."""
    data = sys.modules.get("torch.utils.data")
    if data is None or not isinstance(dataset, data.Subset):
        return dataset, as_int
    whole, number = innermost(dataset.dataset)
    return whole, lambda i, indices=dataset.indices: number(indices[i])


def _concatenated(dataset):
    """The parts of a ConcatDataset, or of a dataset with a list of datasets that have as many items; or None."""
    data = sys.modules.get("torch.utils.data")
    if data is None:
        return None
    if isinstance(dataset, data.ConcatDataset):
        return dataset.datasets
    for value in list(getattr(dataset, "__dict__", {}).values()):
        try:
            if (isinstance(value, (list, tuple)) and len(value) > 1 and isinstance(value[0], data.Dataset)
                    and sum(map(len, value)) == len(dataset)):
                return value
        except Exception:  # no length
            continue
    return None


def _of_parts(parts, functions):
    """The function of an index of several datasets, one behind the other, made of one function for each."""
    ends = list(accumulate(map(len, parts)))

    def of_part(i):
        i = as_int(i)
        i += ends[-1] if i < 0 else 0
        part = bisect_right(ends, i)
        return functions[part](i - (ends[part - 1] if part else 0))

    return of_part


def through(dataset, make):
    """The function of an index of the dataset, made of make(leaf): the function of an index of that leaf."""
    data = sys.modules.get("torch.utils.data")
    if data is not None and isinstance(dataset, data.Subset):
        inner, indices = through(dataset.dataset, make), dataset.indices
        return lambda i: inner(indices[i])
    parts = _concatenated(dataset)
    if parts:
        return _of_parts(parts, [through(part, make) for part in parts])
    held = _handed_on(dataset)
    return make(dataset) if held is None else through(held, make)


class Leaf:
    """A dataset that opens files.  Leaves of one group keep their items alike."""

    def __init__(self, dataset):
        self.dataset, self.group, self._lists = dataset, None, None

    @property
    def lists(self):
        if self._lists is None:
            self._lists = Lists(self.dataset)
        return self._lists

    def some(self):
        """Indices of items in the begin, the middle and the end."""
        size = self.lists.size
        return list(dict.fromkeys(i for i in (0, size // 2, size - 1) if i >= 0))


class Leaves:
    """The leaves of a dataset.  Up to LEAVES_MAX are groups of their own.  Of more, those of one class with lists of
    the same names are a group.

    several  whether there is more than one leaf"""

    LEAVES_MAX = 8
    ITEMS = 3  # of a group, that are tried
    CANDIDATES = 64

    def __init__(self, dataset):
        self._dataset, self._known = dataset, {}
        self._find = through(dataset, lambda one: lambda i, leaf=self._leaf(one): (leaf, i))
        self.several = len(self._known) > 1
        for leaf in self._known.values() if len(self._known) > self.LEAVES_MAX else ():
            leaf.group = type(leaf.dataset), *leaf.lists.names()

    def _leaf(self, dataset):
        leaf = self._known.setdefault(id(dataset), Leaf(dataset))
        leaf.group = id(dataset)
        return leaf

    def find(self, i):
        """The leaf of an item, and the index that the item has there."""
        return self._find(i)

    def bind(self, make):
        """The function of an index, made of make(leaf): the function of an index of the leaf."""
        made = {key: make(leaf) for key, leaf in self._known.items()}
        return through(self._dataset, lambda one: made[id(one)])

    def spread(self):
        """Indices of a few items of each group, far from one another; of at most LEAVES_MAX groups."""
        found = {}
        try:
            size = len(self._dataset)
            for k in range(1, self.CANDIDATES):
                i = int(k * 0.6180339887498949 % 1 * size)
                own = found.setdefault(self.find(i)[0].group, [])
                own += [i] if len(own) < self.ITEMS and i not in own else []
        except Exception:  # no length, or other indices
            return ()
        return [i for own in list(found.values())[:self.LEAVES_MAX] for i in own]


def _handed_on(dataset):
    """The only dataset in a dataset that has no texts of its own and as many items; or None."""
    data = sys.modules.get("torch.utils.data")
    try:
        held = [value for value in vars(dataset).values() if data is not None and isinstance(value, data.Dataset)]
        if len(held) == 1 and len(held[0]) == len(dataset) and not Lists(dataset, depth=0).columns:
            return held[0]
    except Exception:  # no attributes, or no length
        pass
    return None


def listed(dataset):
    """The function from an index to a path by the dataset's own lists, or None.  It looks into torch's Subset and
    ConcatDataset."""
    data = sys.modules.get("torch.utils.data")
    if data is not None and isinstance(dataset, data.Subset):
        inner, indices = listed(dataset.dataset), dataset.indices
        return inner and (lambda i: inner(indices[i]))
    if data is not None and isinstance(dataset, data.ConcatDataset):
        inner = [listed(part) for part in dataset.datasets]
        return _of_parts(dataset.datasets, inner) if inner and all(inner) else None
    for name in LISTS:
        found = getattr(dataset, name, None)
        try:
            if _first(found[0]) is not None and len(found) == len(dataset):
                return lambda i, found=found: _first(found[i])
        except Exception:  # no list, or an empty one, or somebody's own type
            continue
    return None


def keys_of_paths(item):
    """Where an item may hold a path: (None,) for the item itself."""
    if is_path(item):
        return (None,)
    return [key for key, value in (item.items() if isinstance(item, dict) else enumerate(item)) if is_path(value)]


def _number(value):
    try:
        return None if isinstance(value, bool) else as_int(value)
    except Exception:
        return None


def _parts(item, keys=(), depth=DEPTH):
    """Yields (keys, part) for the texts, numbers and lists of texts in an item of a list."""
    if is_path(item):
        yield keys, item
        return
    if isinstance(item, dict):
        inside = item.items()
    elif isinstance(item, (tuple, list)) or getattr(item, "ndim", 0) == 1 and type(item).__name__ == "ndarray":
        if len(item) and all(map(is_path, item)):
            yield keys, item
        inside = enumerate(item)
    elif _number(item) is not None:
        yield keys, item
        return
    elif hasattr(item, "__dict__") and not hasattr(item, "__len__"):  # a record
        inside = ((_Attribute(name), value) for name, value in vars(item).items())
    else:
        return
    for key, value in inside if depth else ():
        yield from _parts(value, (*keys, key), depth - 1)


def _part_of(values, keys):
    """The function from a position in a list to the part of the item there that has these keys."""
    if not keys:
        return lambda i: values[i]
    if len(keys) == 1 and not isinstance(keys[0], _Attribute):
        key, = keys
        return lambda i: values[i][key]

    def part(i):
        item = values[i]
        for key in keys:
            item = getattr(item, key) if isinstance(key, _Attribute) else item[key]
        return item

    return part


def _with_columns(name, value):
    """The lists in an attribute: of a DataFrame its columns."""
    kind = type(value).__name__
    if kind == "DataFrame":
        return [((name, str(column)), getattr(value[column], "values", value[column])) for column in value.columns]
    return [((name,), value.values if kind == "Series" and hasattr(value, "values") else value)]


def _is_made_of_others(dataset):
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(dataset, (data.Subset, data.ConcatDataset))


def _columns(dataset, depth):
    """Lists.columns, also of Subset and of ConcatDataset: there the columns of the parts belong together by their
    places, and a text is None where a part has fewer."""
    if not _is_made_of_others(dataset):
        return Lists(dataset, depth).columns
    if hasattr(dataset, "indices"):
        indices = dataset.indices
        return {key: lambda i, column=column: column(indices[i])
                for key, column in _columns(dataset.dataset, depth).items()}
    parts = [_columns(part, depth).values() for part in dataset.datasets]
    return {k: _of_parts(dataset.datasets, functions)
            for k, functions in enumerate(zip_longest(*parts, fillvalue=lambda i: None))}


class Lists:
    """The lists of a leaf, by names.

    columns  {name: function from an index to a text}
    numbers  {name: function from an index to an int}
    tables   {name: (function from a position to a text, number of positions)}: of any length
    rows     {name: (function from a position to a list of texts, number of positions)}: of any length"""

    def __init__(self, dataset, depth=DEPTH):
        self.columns, self.numbers, self.tables, self.rows = {}, {}, {}, {}
        self.size = _size(dataset)
        by_list = listed(dataset)
        if by_list:
            self.columns[()] = by_list
        for name, value in list(getattr(dataset, "__dict__", {}).items()):
            try:
                held = self._datasets(name, value)
                for inner_name, inner in held:
                    self._take(inner_name, inner, depth - 1) if depth else None
                for inner_name, values in () if held or is_path(value) else _with_columns(name, value):
                    self._look(inner_name, values)
            except Exception:  # no list
                continue

    def names(self):
        return tuple(self.columns), tuple(self.numbers), tuple(self.tables), tuple(self.rows)

    def _datasets(self, name, value):
        """The datasets in an attribute: one, or several side by side."""
        data = sys.modules.get("torch.utils.data")
        if data is None:
            return []
        if isinstance(value, data.Dataset):
            return [((name,), value)]
        if not isinstance(value, (dict, tuple, list)):
            return []
        inside = value.items() if isinstance(value, dict) else enumerate(value)
        return [((name, key), one) for key, one in islice(inside, PARTS_MAX) if isinstance(one, data.Dataset)]

    def _take(self, name, dataset, depth):
        """Takes the lists of a dataset that this one holds."""
        if len(dataset) >= self.size:
            self.columns.update({(*name, key): column for key, column in _columns(dataset, depth).items()})
        if not _is_made_of_others(dataset):
            inner = Lists(dataset, depth)
            for mine, its in (self.tables, inner.tables), (self.rows, inner.rows):
                mine.update({(*name, key): table for key, table in its.items()})

    def _look(self, name, values):
        """Looks at the items in the begin, the middle and the end of a list."""
        size = len(values)
        found = {}
        for i in (0, size // 2, size - 1) if size else ():
            found.update(islice(_parts(values[i]), PARTS_MAX))
        for keys, part in found.items():
            get, key = _part_of(values, keys), (*name, *keys)
            if is_path(part):
                if len(keys) < 2:
                    self.tables[key] = get, size
                if size == self.size:
                    self.columns[key] = get
            elif _number(part) is None:
                self.rows[key] = get, size
            elif size == self.size and len(self.numbers) < NUMBERS_MAX:
                self.numbers[key] = lambda i, get=get: as_int(get(i))
