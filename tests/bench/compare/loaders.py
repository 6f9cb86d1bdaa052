# SPDX-License-Identifier: Apache-2.0
"""Packs a dataset for a loader library, or reads one rank's part with a Python loader.

usage: loaders.py pack wds|mds|litdata|hf SOURCE OUT
       loaders.py read torch|numpy|weighted|bucketed LIST | view DIRECTORY | wds|mds|litdata|hf|stage PACKED | plain LIST_OR_DIRECTORY

This is rank 0 of 2; 2 workers (or $LOADER_WORKERS), batches of 64, raw bytes.  `torch` is a map-style dataset over a list of paths with
DistributedSampler; `numpy`, `weighted` and `bucketed` have samplers that ddpfs cannot know; `view` the same over the sorted listing of a ddpfs mount, in its order: the mount has dealt already.
The workers hand over only (samples, bytes), so no row pays for moving bytes between processes.  `stage` is libddpfs_stage,
whose reads are threads of this process, with $STAGE_MEMORY bytes.  `plain` is open() and
read() in a loop, the same names in every pass.  Speaks reader.c's protocol: "ready" after the imports, then a line on
stdin for each pass; the data is opened after the first.
"""
import ctypes
import glob
import json
import os
import random
import sys
import time
import types

WORLD, RANK, WORKERS, BATCH, SEED = 2, 0, int(os.environ.get("LOADER_WORKERS", "2")), 64, 11


def load(path):
    with open(path, "rb") as f:
        return f.read()


def sample(path):  # litdata calls it in its own processes
    return {"img": load(path)}


def import_streaming():
    """Its imports take in torchvision and transformers for classes that are not used here; where those do not load
    beside the installed torch, empty modules stand in."""
    try:
        import streaming
        return streaming
    except (ImportError, RuntimeError):
        pass

    class Empty(types.ModuleType):
        __path__ = []

        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

    for name in [m for m in sys.modules if m.split(".")[0] in ("streaming", "torchvision", "transformers")]:
        del sys.modules[name]
    for name in ("torchvision", "torchvision.datasets", "torchvision.transforms",
                 "torchvision.transforms.functional", "transformers", "transformers.feature_extraction_utils",
                 "transformers.tokenization_utils_base", "transformers.models", "transformers.models.auto",
                 "transformers.models.auto.tokenization_auto"):
        sys.modules[name] = Empty(name)
    import streaming
    return streaming


# --- packing, each library as its manual advises -----------------------------------------------------------------

def pack_wds(files, out):
    """Shuffled before packing; shards of about 256 MB, a multiple of 4 of them."""
    import webdataset as wds

    random.Random(7).shuffle(files)
    total = sum(map(os.path.getsize, files)) + 1024 * len(files)
    shards = max(4, 4 * round(total / 4 / 256e6))
    per_shard = -(-len(files) // shards)
    with wds.ShardWriter(f"{out}/%06d.tar", maxcount=per_shard, maxsize=1e12, verbose=0) as w:
        for i, path in enumerate(files):
            w.write({"__key__": f"{i:08d}", "jpeg": load(path)})


def pack_mds(files, out):
    with import_streaming().MDSWriter(out=out, columns={"img": "bytes"}) as w:  # 64 MiB shards, its default
        for path in files:
            w.write({"img": load(path)})


def pack_litdata(files, out):
    from litdata import optimize

    optimize(fn=sample, inputs=files, output_dir=out, chunk_bytes="64MB", num_workers=2)


def pack_hf(files, out):
    import pyarrow as pa

    schema = pa.schema([("img", pa.large_binary())])
    with pa.OSFile(f"{out}/data.arrow", "wb") as f, pa.ipc.new_stream(f, schema) as w:
        for i in range(0, len(files), 100):
            part = pa.array(map(load, files[i:i + 100]), pa.large_binary())
            w.write_batch(pa.record_batch([part], schema))


# --- reading ---------------------------------------------------------------------------------------------------------

def count(batch):
    blobs = [b.get("img", b.get("jpeg")) if isinstance(b, dict) else b for b in batch]
    return len(blobs), sum(map(len, blobs))


class Files:
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return load(self.paths[i])


def loader(dataset, **kw):
    from torch.utils.data import DataLoader

    if "batch_sampler" not in kw:
        kw["batch_size"] = BATCH
    return DataLoader(dataset, num_workers=WORKERS, collate_fn=count, persistent_workers=True, **kw)


def map_style(dataset):
    from torch.utils.data import DistributedSampler

    sampler = DistributedSampler(dataset, num_replicas=WORLD, rank=RANK, shuffle=True, seed=SEED)
    return loader(dataset, sampler=sampler)


def listed(where):
    if os.path.isdir(where):
        return [f"{where}/{name}" for name in sorted(os.listdir(where))]
    with open(where) as f:
        return f.read().splitlines()


def open_torch(where):
    return map_style(Files(listed(where)))


def open_numpy(where):
    """Another permutation in each epoch, by numpy with a seed that nobody is told."""
    import numpy

    files = Files(listed(where))

    class Sampler:
        def __init__(self):
            self.rng = numpy.random.default_rng()

        def __len__(self):
            return len(files)

        def __iter__(self):
            return iter(self.rng.permutation(len(files)).tolist())

    return loader(files, sampler=Sampler())


def open_weighted(where):
    import torch

    class Counting(torch.utils.data.WeightedRandomSampler):
        again = 0  # of its latest draws those of a file that was drawn before

        def __iter__(self):
            drawn = list(super().__iter__())
            self.again = len(drawn) - len(set(drawn))
            return iter(drawn)

    files = Files(listed(where))
    return loader(files, sampler=Counting(torch.rand(len(files)) + 0.1, len(files)))


def open_bucketed(where):
    """Batches of items of similar length, as for texts: 50 batches of a permutation are sorted by length together, and
    then the batches are shuffled."""
    import torch

    files = Files(listed(where))
    length = torch.rand(len(files)).tolist()

    class Buckets:
        def __len__(self):
            return -(-len(files) // BATCH)

        def __iter__(self):
            order, batches = torch.randperm(len(files)).tolist(), []
            for at in range(0, len(order), 50 * BATCH):
                part = sorted(order[at:at + 50 * BATCH], key=length.__getitem__)
                batches += [part[i:i + BATCH] for i in range(0, len(part), BATCH)]
            random.shuffle(batches)
            return iter(batches)

    return loader(files, batch_sampler=Buckets())


def open_view(where):
    return loader(Files(listed(where)))


class open_plain:
    def __init__(self, where):
        self.paths = listed(where)

    def __iter__(self):
        return ((1, len(load(path))) for path in self.paths)


def open_hf(where):
    import datasets

    return map_style(datasets.Dataset.from_file(f"{where}/data.arrow"))


def open_wds(where):
    import webdataset as wds

    return loader(wds.WebDataset(sorted(glob.glob(f"{where}/*.tar")), nodesplitter=wds.split_by_node,
                                 shardshuffle=100, seed=SEED, empty_check=False).shuffle(5000))


def open_mds(where):
    return loader(import_streaming().StreamingDataset(local=where, shuffle=True, shuffle_seed=SEED, batch_size=BATCH))


def open_litdata(where):
    from litdata import StreamingDataLoader, StreamingDataset

    return StreamingDataLoader(StreamingDataset(where, shuffle=True, seed=SEED), batch_size=BATCH,
                               num_workers=WORKERS, collate_fn=count, persistent_workers=True)


class open_stage:
    def __init__(self, where):
        import ddpfs

        # Of small files (order=chunk) whole blocks are a rank's, as the other libraries' shards and chunks are.
        self.stage = ddpfs.Stage(where, batch=BATCH, rank=RANK, world=WORLD, seed=SEED, deal=os.environ["STAGE_DEAL"],
                                 memory=int(os.environ["STAGE_MEMORY"]))

    def __iter__(self):
        return ((len(batch), batch.lengths.sum()) for batch in self.stage)


def imports(kind):
    if kind == "plain":
        return
    if kind == "stage":
        import ddpfs  # noqa: F401
        return
    import torch.utils.data  # noqa: F401

    if kind == "mds":
        import torch.distributed as dist

        import_streaming()
        # One process stands for the whole world: a group of one keeps the library from waiting for rank 1.
        dist.init_process_group("gloo", rank=0, world_size=1)
    elif kind in ("wds", "litdata", "hf"):
        __import__({"wds": "webdataset", "hf": "datasets"}.get(kind, kind))


def lock_code():
    """Code dropped together with the caches would be read again within the cold pass.  (Not mlockall: it would take in
    the reserved parts of every thread's heap and stack.)"""
    mlock = ctypes.CDLL(None).mlock
    mlock.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    with open("/proc/self/maps") as f:
        maps = [line.split() for line in f]
    for m in maps:
        if len(m) > 5 and m[5].startswith("/") and "w" not in m[1]:
            start, end = (int(x, 16) for x in m[0].split("-"))
            mlock(start, end - start)


def one_pass(batches, start):
    last, waits, files, size = start, [], 0, 0
    for n, length in batches:
        now = time.monotonic()
        waits.append(now - last)
        last = now
        files += int(n)
        size += int(length)
    steady = sorted(waits[1:] or waits)
    print(json.dumps({"files": files, "bytes": size, "sec": time.monotonic() - start, "list_s": 0, "failures": 0,
                      "again": getattr(getattr(batches, "sampler", None), "again", 0), "first_s": waits[0],
                      "p99_batch_ms": 1e3 * steady[len(steady) * 99 // 100]}), flush=True)


def main():
    verb, kind, where = sys.argv[1:4]
    if verb == "pack":
        out = sys.argv[4]
        os.makedirs(out, exist_ok=True)
        globals()[f"pack_{kind}"](sorted(glob.glob(f"{where}/*/*")), out)
        return
    os.environ.update(WORLD_SIZE=str(WORLD), RANK=str(RANK), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", NNODES=str(WORLD),
                      GLOBAL_RANK=str(RANK), MASTER_ADDR="127.0.0.1", MASTER_PORT="29555")
    imports(kind)
    lock_code()
    print("ready", flush=True)
    batches = None
    while sys.stdin.readline():
        start = time.monotonic()
        if batches is None or kind == "view":  # a view lists again: a new epoch
            batches = None
            batches = globals()[f"open_{kind}"](where)
        one_pass(batches, start)


if __name__ == "__main__":
    main()
