# SPDX-License-Identifier: Apache-2.0
"""Rows of `mkshard index` and `mkshard pack` on a bucket: bytes a second / the link, and processor time on loopback.

The same command on the local disk is the peer of the processor time.  The store throws away what is packed into it."""

import os
import resource
import shutil
import subprocess
import sys
import time

import bar

LINK_SHARE = 0.9  # bytes a second / link


def shards_of(packed):
    return sum(path.stat().st_size for path in packed.path.glob("shard-*"))


def run(build, *words):
    """Runs mkshard.  Returns its seconds, and those of processors."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run([build / "tools/mkshard", *words], capture_output=True, text=True)
    seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"remote: mkshard {words[0]}: {done.stderr.strip()}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def use(store):
    os.environ.update(AWS_ACCESS_KEY_ID="bench", AWS_SECRET_ACCESS_KEY="bench", AWS_REGION="us-east-1",
                      AWS_ENDPOINT_URL_S3=store.url, AWS_EC2_METADATA_DISABLED="true")


def index(env, build, packed, bucket):
    """The index goes to a file of this host, because the shards have one beside them."""
    file = f"{env.scratch}/index.ddpfs"
    place = f"s3://bench/{packed.source.name}" if bucket else packed.path
    return run(build, "index", "--force", "-o", file, place)


def pack(env, build, packed, bucket):
    place = f"{env.scratch}/packed"
    shutil.rmtree(place, ignore_errors=True)
    try:
        if bucket:
            return run(build, "pack", "--force", f"--staging={env.scratch}", packed.source.path, "s3://bench/packed")
        return run(build, "pack", packed.source.path, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def measure(env, build, command, packed, new_store, link_of):
    """new_store(*options) makes a store; link_of(store): the bytes a second of its link."""
    name, kind, size = command.__name__, packed.kind, shards_of(packed)
    with new_store("-l", 20, "-r", 100_000_000) as store:
        use(store)
        link, before = link_of(store), store.counts()
        seconds, cpu = command(env, build, packed, True)
        requests, moved = (b - a for a, b in zip(before, store.counts()))
    print(f"{name:10} {kind}, link: {size / seconds / 1e6:.1f} MB/s of {link / 1e6:.1f} MB/s ({size / seconds / link:.2f}), "
          f"{requests / (size / 1e9):.0f} requests/GB, {cpu / (size / 1e9):.2f} CPU s/GB", flush=True)
    if command is index:
        bar.show(f"{kind}: mkshard index, bytes a second / link", size / seconds / link, LINK_SHARE, "x", above=True)
    bar.show(f"{kind}: mkshard {name}, bytes over the link / shards", moved / size, 1.02, "x")
    rounds = []
    for _ in range(3):
        with new_store() as store:
            use(store)
            seconds, cpu = command(env, build, packed, True)
        rounds.append((cpu, seconds, *command(env, build, packed, False)))
    cpu, seconds, local, local_cpu = sorted(rounds)[1]
    print(f"{name:10} {kind}, loopback: {size / seconds / 1e6:.0f} MB/s, {cpu / (size / 1e9):.2f} CPU s/GB; local disk: "
          f"{size / local / 1e6:.0f} MB/s, {local_cpu / (size / 1e9):.2f} CPU s/GB (median of 3)", flush=True)
