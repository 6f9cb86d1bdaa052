# SPDX-License-Identifier: Apache-2.0
"""Packed datasets for every library that takes fsspec URLs (pandas, pyarrow, Hugging Face datasets, Ray Data,
Lightning): no mount, no root.

    ddpfs:///data/x.ddpfs/train/a.jpg        the dataset is the first directory of the path that holds index.ddpfs
    ddpfs://train/a.jpg::s3://bucket/x       a dataset in a store, as a chained URL (needs s3fs, or aiohttp for http)
    ddpfs://train/a.jpg                      with the option dataset="s3://bucket/x", or another dataset

The third form needs no other package, because ddpfs itself reads the store.  Its keys come from where the AWS tools
find them.  Every block is verified before a byte of it is given.  Everything is read only."""

import errno
import os
import stat
from datetime import datetime, timezone

from fsspec import AbstractFileSystem, register_implementation
from fsspec.spec import AbstractBufferedFile
from fsspec.utils import stringify_path

from ddpfs import files

# What fsspec takes off a URL in a chain, by protocol.
_STORES = {"s3": "s3://", "s3a": "s3://", "http": "", "https": "", "file": "", "local": ""}


class ReadOnlyError(OSError, NotImplementedError):
    """A dataset cannot be written to."""

    def __init__(self, path):
        super().__init__(errno.EROFS, "a packed dataset is read only: change the source and pack it again", path)


def _dataset_name(dataset, fo, target_protocol, target_options):
    """The dataset of an instance from its options; None: each path names its own."""
    if dataset is not None and fo is not None:
        raise ValueError(f"dataset={files.shown(dataset)!r} and a chained URL ({files.shown(fo)!r}) both name a dataset: "
                         "give one of them")
    if target_options:
        raise ValueError(f"options of the store ({', '.join(target_options)}) are not taken: ddpfs finds keys and "
                         "endpoint where the AWS tools find them (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ~/.aws)")
    if fo is not None:
        if (target_protocol or "file") not in _STORES:
            raise ValueError(f"'{files.shown(f'{target_protocol}://{fo}')}' is no dataset: it can lie in s3://, https://, "
                             "http:// or file://")
        name = stringify_path(fo)
        return name if "://" in name else _STORES[target_protocol or "file"] + name
    return None if dataset is None else os.fspath(dataset).rstrip("/") or "/"


def _span(size, start, end):
    """(offset, length) of what Python's [start:end] means in a file of this size."""
    begin, stop, _ = slice(start, end).indices(size)
    return begin, max(stop - begin, 0)


class DdpfsFile(AbstractBufferedFile):
    """A file of a dataset, open for reading.  Pickled, it opens the file again; so does a child after a fork."""

    def __init__(self, fs, path, found, **options):
        self._dataset, self._inner, entry = found
        self._id = entry.id
        self._tag = entry.xxh3, entry.len
        super().__init__(fs, path, "rb", size=entry.len, **options)

    def _fetch_range(self, start, end):
        if self._dataset.pid != os.getpid():
            self._open_again()
        offset, length = _span(self.size, start, end)
        got = self._dataset.read([(self._id, offset, length)])[0]
        if isinstance(got, OSError):
            raise got
        return got

    def _open_again(self):
        dataset = files.opened(self._dataset.name, self._dataset.index)
        entry = dataset.find(self._inner)
        if (entry.xxh3, entry.len) != self._tag:
            raise OSError(errno.ESTALE, "the dataset was replaced since this file was opened: open it again", self.path)
        self._dataset, self._id = dataset, entry.id


class DdpfsFileSystem(AbstractFileSystem):
    """The files of packed datasets, read only.

    dataset    one dataset for all paths: a directory, or its name in a store (s3://bucket/prefix, https://host/path).
               Paths are then relative to its root.  Without it the dataset is a part of each path: the first
               directory, from the left, that holds index.ddpfs
    index      path of its index, if it does not lie with the shards (mkshard index -o)
    fo, target_protocol, target_options    the same from a chained URL; fsspec fills them in

    Any thread may use an instance.  A process opens a dataset once, whatever the number of instances.  After a fork
    the child opens it again.  A dataset on a disk that is replaced is seen at the next call."""

    protocol = "ddpfs"
    root_marker = ""

    def __init__(self, dataset=None, fo=None, target_protocol=None, target_options=None, index=None, **options):
        super().__init__(**options)
        self.dataset = _dataset_name(dataset, fo, target_protocol, target_options)
        if index is not None and self.dataset is None:
            raise ValueError(f"index={files.shown(index)!r} is that of one dataset: name it, too")
        if index is not None and ":/" in os.fsdecode(index) and not os.path.exists(index):
            raise ValueError(f"index={files.shown(index)!r}: an index that is named apart is a file of this host: "
                             "fetch it, and name the file")
        self.index = None if index is None else os.path.abspath(index)
        if self.dataset is not None:  # a "/" in front means the dataset's root, and no name has it
            self._strip_protocol = self._strip_in_dataset

    @classmethod
    def _strip_in_dataset(cls, path):
        if isinstance(path, list):
            return [cls._strip_in_dataset(p) for p in path]
        return cls._strip_protocol(path).lstrip("/")

    def _locate(self, path):
        """(Dataset, the path in it)"""
        if self.dataset is not None:
            return files.opened(self.dataset, self.index), path
        if "://" in path:
            raise ValueError(f"'{files.shown(path)}': name a dataset in a store by the option dataset='s3://...', or by a "
                             "chained URL, ddpfs://PATH::s3://BUCKET/PREFIX")
        parts = path.split("/")
        # Hugging Face datasets makes ddpfs://data/x of ddpfs:///data/x, so a relative path may also begin at the root.
        for base in ("",) if path.startswith("/") else ("", "/"):
            for n in range(1, len(parts) + 1):
                name = base + "/".join(parts[:n])
                if name and os.path.isfile(name + "/index.ddpfs"):
                    return files.opened(name), "/".join(parts[n:])
        raise FileNotFoundError(errno.ENOENT, "no directory of this path holds index.ddpfs, so it names no dataset",
                                path)

    def _find(self, path):
        """(Dataset, the path in it, entry)"""
        dataset, inner = self._locate(path)
        try:
            return dataset, inner, dataset.find(inner)
        except OSError as error:
            error.filename = path
            raise

    def _find_file(self, path):
        found = self._find(path)
        if found[2].is_dir:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return found

    @staticmethod
    def _info(name, entry):
        kind = stat.S_IFDIR if entry.is_dir else stat.S_IFREG
        info = {"name": name, "size": entry.len, "type": "directory" if entry.is_dir else "file",
                "mtime": float(entry.mtime_s), "mode": kind | entry.mode}
        if not entry.is_dir:
            info["ETag"] = f"{entry.xxh3:016x}"  # XXH3-64 of the content: Hugging Face caches by this key
        return info

    def info(self, path, **_):
        path = self._strip_protocol(path)
        return self._info(path, self._find(path)[2])

    def exists(self, path, **_):
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def ls(self, path, detail=True, **_):
        path = self._strip_protocol(path)
        dataset, _inner, entry = self._find(path)
        if not entry.is_dir:
            return [self._info(path, entry)] if detail else [path]
        below = path + "/" if path else ""
        if detail:
            return [self._info(below + os.fsdecode(e.name), e) for e in dataset.list(entry)]
        return [below + os.fsdecode(e.name) for e in dataset.list(entry)]

    def modified(self, path):
        return datetime.fromtimestamp(self.info(path)["mtime"], tz=timezone.utc)

    def invalidate_cache(self, path=None):
        """Opens datasets anew at the next call: for one in a store that was replaced."""
        files.forget_all()

    def _open(self, path, mode="rb", block_size=None, autocommit=True, cache_options=None, cache_type="readahead", **_):
        if mode != "rb":
            raise ReadOnlyError(path)
        block_size = 1 << 20 if block_size in (None, "default") else block_size  # what is verified together
        return DdpfsFile(self, path, self._find_file(path), block_size=block_size, cache_type=cache_type,
                         cache_options=cache_options)

    # ---- many at once: all reads of a call are in flight together ----

    def _read(self, wanted):
        """Reads (path, start, end) each.  Returns for each its bytes, or an exception."""
        results, ranges = [None] * len(wanted), {}
        for i, (path, start, end) in enumerate(wanted):
            try:
                dataset, _, entry = self._find_file(self._strip_protocol(path))
            except OSError as error:
                results[i] = error
            else:
                ranges.setdefault(id(dataset), (dataset, []))[1].append((i, (entry.id, *_span(entry.len, start, end))))
        for dataset, of in ranges.values():
            for (i, _), got in zip(of, dataset.read([span for _, span in of])):
                results[i] = got
        return results

    def cat_file(self, path, start=None, end=None, **_):
        got = self._read([(path, start, end)])[0]
        if isinstance(got, OSError):
            raise got
        return got

    def cat(self, path, recursive=False, on_error="raise", **_):
        paths = self.expand_path(path, recursive=recursive)
        if not (len(paths) > 1 or isinstance(path, list) or paths[0] != self._strip_protocol(path)):
            return self.cat_file(paths[0])
        if recursive:
            paths = [p for p in paths if not self.isdir(p)]
        out = {}
        for p, got in zip(paths, self._read([(p, None, None) for p in paths])):
            if isinstance(got, OSError) and on_error == "raise":
                raise got
            if not isinstance(got, OSError) or on_error == "return":
                out[p] = got
        return out

    def cat_ranges(self, paths, starts, ends, max_gap=None, on_error="return", **_):
        if not isinstance(paths, list):
            raise TypeError(f"paths={paths!r}: give a list")
        starts = starts if isinstance(starts, (list, tuple)) else [starts] * len(paths)
        ends = ends if isinstance(ends, (list, tuple)) else [ends] * len(paths)
        if not len(starts) == len(ends) == len(paths):
            raise ValueError("paths, starts and ends differ in length")
        results = self._read(list(zip(paths, starts, ends)))
        for got in results:
            if isinstance(got, OSError) and on_error == "raise":
                raise got
        return results

    # ---- what a read-only file system refuses ----

    def _refuse(self, path, *_, **__):
        raise ReadOnlyError(path)

    mkdir = makedirs = rmdir = rm = rm_file = _rm = cp_file = mv = touch = pipe_file = put_file = _refuse


register_implementation("ddpfs", DdpfsFileSystem, clobber=True)  # also where the package is only on PYTHONPATH
