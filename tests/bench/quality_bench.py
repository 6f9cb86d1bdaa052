#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How random order=full and order=chunk are on the hardest layout: 1,000 classes stored one after the other.

    tests/bench/run quality_bench [--classes 1000] [--per-class 1280] [--bytes 110000] [--svg FILE]

An index without shards, as `mkshard pack --no-shuffle` lays it out; a pool of 256 MiB; against a true random permutation
(`mkshard stats` has the definitions).  --svg plots order=chunk."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import bar

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("DDPFS_BUILD", ROOT / "build"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--per-class", type=int, default=1280)
    parser.add_argument("--bytes", type=int, default=110_000)
    parser.add_argument("--svg", help="where to plot order=chunk")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quality_bench.") as place:
        dataset = Path(place) / "dataset"
        subprocess.run([BUILD / "tests/shard/make_index", dataset, str(args.classes), str(args.per_class),
                        str(args.bytes), "sorted"], check=True)
        print(f"{args.classes} sorted classes of {args.per_class} samples of {args.bytes} bytes, batches of 256")
        for order in ("full", "chunk,pool=256M"):
            argv = [BUILD / "tools/mkshard", "stats", "--json", "-o", f"order={order}", dataset]
            if args.svg and order != "full":
                argv += ["--svg", args.svg]
            found = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
            name = order.split(",")[0]
            bar.show(f"{name}: classes in a batch, of random's", found["distinct_ratio"], 0.9, "x", above=True)
            bar.show(f"{name}: |lag-1 correlation| of classes", abs(found["ours"]["class_correlation"][0]), 0.05, "")
            bar.show(f"{name}: |lag-1 correlation| of places", abs(found["ours"]["place_correlation"][0]), 0.05, "")


if __name__ == "__main__":
    sys.exit(main())
