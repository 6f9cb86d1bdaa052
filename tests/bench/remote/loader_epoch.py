# SPDX-License-Identifier: Apache-2.0
"""One epoch of PyTorch's DataLoader with 2 workers: prints files, bytes and seconds as JSON.

    loader_epoch.py files DIR                the files that DIR lists, in this order
    loader_epoch.py shuffled DIR SOURCE      the files of SOURCE, read below DIR, in another order
    loader_epoch.py webdataset URL...        the files of tar files, each fetched by curl
    loader_epoch.py s3torchconnector KEYS    objects whose keys begin so, in another order
    loader_epoch.py streaming KEYS CACHE     MosaicML's shards
    loader_epoch.py litdata KEYS CACHE       LitData's chunks

KEYS is of the bucket `bench` of $AWS_ENDPOINT_URL.  Reading ends after $SECONDS_MAX.
"""

import importlib
import json
import os
import random
import sys
import time
from pathlib import Path

import torch.utils.data

sys.path.append(str(Path(__file__).resolve().parents[1] / "compare"))

WORKERS, BATCH = 2, 64


class Files(torch.utils.data.Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        with open(self.paths[i], "rb") as file:
            return len(file.read())


def loader(data, **options):
    return torch.utils.data.DataLoader(data, batch_size=BATCH, num_workers=WORKERS, **options)


def of_files(place):
    return loader(Files([f"{place}/{name}" for name in sorted(os.listdir(place)) if name[0] != "."]))


def of_shuffled(place, source):
    """Who reads has the list already, as it is a local one."""
    names = [str(path.relative_to(source)) for path in sorted(Path(source).rglob("*.*"))]
    random.Random(7).shuffle(names)
    return loader(Files([f"{place}/{name}" for name in names]))


def of_webdataset(*urls):
    import webdataset

    def length(sample):
        return sum(len(value) for name, value in sample.items() if not name.startswith("__"))

    return loader(webdataset.WebDataset([f"pipe:curl -s '{url}'" for url in urls], shardshuffle=False).map(length))


def of_s3torchconnector(keys):
    from s3torchconnector import S3ClientConfig, S3MapDataset

    data = S3MapDataset.from_prefix(f"s3://bench/{keys}", region="us-east-1", endpoint=os.environ["AWS_ENDPOINT_URL"],
                                    transform=lambda found: len(found.read()),
                                    s3client_config=S3ClientConfig(force_path_style=True))
    return loader(data, shuffle=True)


def of_streaming(keys, cache):
    from loaders import import_streaming

    class Lengths(import_streaming().StreamingDataset):
        def __getitem__(self, i):
            return len(super().__getitem__(i)["img"])

    os.environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]
    return loader(Lengths(remote=f"s3://bench/{keys}", local=cache, shuffle=True, batch_size=BATCH))


def of_litdata(keys, cache):
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # else it reads by https only
    class Lengths(StreamingDataset):
        def __getitem__(self, i):
            return len(super().__getitem__(i)["img"])

    data = Lengths(f"s3://bench/{keys}", cache_dir=cache, shuffle=True,
                   storage_options={"endpoint_url": os.environ["AWS_ENDPOINT_URL"]})
    return StreamingDataLoader(data, batch_size=BATCH, num_workers=WORKERS)


def imports(kind):
    """Libraries are in memory before the clock starts."""
    if kind == "streaming":
        from loaders import import_streaming

        import_streaming()
    elif kind not in ("files", "shuffled"):
        importlib.import_module(kind)


def main():
    imports(sys.argv[1])
    start, files, size = time.monotonic(), 0, 0
    end = start + float(os.environ["SECONDS_MAX"])
    for batch in globals()[f"of_{sys.argv[1]}"](*sys.argv[2:]):
        files += len(batch)
        size += int(batch.sum())
        if time.monotonic() > end:
            break
    print(json.dumps({"files": files, "bytes": size, "sec": time.monotonic() - start}))


if __name__ == "__main__":
    main()
