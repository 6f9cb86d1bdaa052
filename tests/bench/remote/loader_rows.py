# SPDX-License-Identifier: Apache-2.0
"""PyTorch's DataLoader with 2 workers on a mount, beside mounts and libraries that read from the same store.

A peer is a function PEER(env, store, packed), a context in which it can be read; it gives the arguments of
loader_epoch.py, or raises Skip.  What a library needs is packed once, as it packs."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import bar

HERE = Path(__file__).resolve().parent
COMPARE = HERE.parent / "compare"
PACKAGES = ["rclone", "s3fs", "curl", "python3-venv"]
TORCH = "torch==2.13.0"  # first and held: the libraries would replace it by the newest one
PYTHON = ["numpy", "boto3", "webdataset", "s3torchconnector", "mosaicml-streaming", "litdata"]
SECONDS_MAX = 20  # of an epoch: the slowest peers need minutes for all of it


class Skip(Exception):
    """Why a peer is not measured."""


def setup(venv):
    subprocess.run(["apt-get", "install", "-y", "-q", *PACKAGES], check=True)
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    (Path(venv) / ".gitignore").write_text("*\n")
    for what in ([TORCH], [TORCH, *PYTHON]):
        subprocess.run([f"{venv}/bin/pip", "install", "-q", *what], check=True)


def need(program):
    if not shutil.which(program):
        raise Skip(f"{program} is not installed; --setup installs it")


def loose(env, packed):
    """Returns the key below which the files of the dataset are objects of their own."""
    place = Path(env.bucket) / f"{packed.source.name}-loose"
    if not place.exists():
        place.symlink_to(packed.source.path)
    return place.name


def key_of(packed, library):
    return f"{packed.source.name}-{library}"


def pack(env, packed, library):
    """Packs the dataset once as a library of compare/loaders.py does."""
    place = Path(env.bucket) / key_of(packed, library)
    if place.exists():
        return
    done = subprocess.run([env.python, COMPARE / "loaders.py", "pack", library, packed.source.path, f"{place}.new"],
                          capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(f"{place}.new", ignore_errors=True)
        raise Skip(last_line(done.stderr))
    os.rename(f"{place}.new", place)


def last_line(text):
    return (text.strip().splitlines() or ["no reason"])[-1]


@contextlib.contextmanager
def mount_of(env, name, *command):
    """A mount by a program in the foreground, which ends when it is unmounted."""
    at = Path(env.scratch) / f"mnt-{name}"
    at.mkdir(exist_ok=True)
    log = Path(env.scratch) / f"{name}.log"
    with open(log, "w") as out, subprocess.Popen([*command, at], stdout=out, stderr=out) as process:
        try:
            end = time.monotonic() + 20
            while not os.path.ismount(at):
                if process.poll() is not None or time.monotonic() > end:
                    raise Skip(last_line(log.read_text()))
                time.sleep(0.01)
            yield at
        finally:
            subprocess.run(["umount", "-l", at], stderr=subprocess.DEVNULL)
            process.terminate()


@contextlib.contextmanager
def rclone(env, store, packed):
    need("rclone")
    os.environ.update(RCLONE_CONFIG_BENCH_TYPE="s3", RCLONE_CONFIG_BENCH_PROVIDER="Other",
                      RCLONE_CONFIG_BENCH_ENV_AUTH="true", RCLONE_CONFIG_BENCH_ENDPOINT=store.url,
                      RCLONE_CONFIG_BENCH_REGION="us-east-1", RCLONE_CONFIG="")
    with mount_of(env, "rclone", "rclone", "mount", "--read-only", "--no-modtime",
                  f"bench:bench/{loose(env, packed)}") as at:
        yield ["shuffled", at, packed.source.path]


@contextlib.contextmanager
def s3fs(env, store, packed):
    need("s3fs")
    with mount_of(env, "s3fs", "s3fs", "-f", f"bench:/{loose(env, packed)}", "-o",
                  f"url={store.url},use_path_request_style,ro") as at:
        yield ["shuffled", at, packed.source.path]


@contextlib.contextmanager
def webdataset(env, store, packed):
    need("curl")
    url = f"{store.url}/bench/{packed.source.name}"
    yield ["webdataset", *(f"{url}/{shard.name}" for shard in sorted(packed.path.glob("shard-*")))]


@contextlib.contextmanager
def s3torchconnector(env, store, packed):
    yield ["s3torchconnector", f"{loose(env, packed)}/"]


@contextlib.contextmanager
def streaming(env, store, packed):
    with cache(env) as place:
        yield ["streaming", key_of(packed, "mds"), place]


@contextlib.contextmanager
def litdata(env, store, packed):
    with cache(env) as place:
        yield ["litdata", key_of(packed, "litdata"), place]


@contextlib.contextmanager
def cache(env):
    place = Path(env.scratch) / "cache"
    shutil.rmtree(place, ignore_errors=True)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


MOUNTS, LIBRARIES = [rclone, s3fs], [webdataset, s3torchconnector, streaming, litdata]
PACKED = {streaming: "mds", litdata: "litdata"}


def measure(env, store, packed, peer):
    """Returns files a second, from before the mount or the index to the end."""
    os.environ.update(AWS_ACCESS_KEY_ID="bench", AWS_SECRET_ACCESS_KEY="bench", AWS_REGION="us-east-1",
                      AWS_DEFAULT_REGION="us-east-1", AWS_ENDPOINT_URL=store.url, AWS_EC2_METADATA_DISABLED="true",
                      SECONDS_MAX=str(SECONDS_MAX))
    os.environ.pop("AWS_CA_BUNDLE", None)  # the store has no certificate
    if peer in PACKED:
        pack(env, packed, PACKED[peer])
    env.forget_indexes()
    start = time.monotonic()
    with peer(env, store, packed) as what:
        lead = time.monotonic() - start
        done = subprocess.run([env.python, HERE / "loader_epoch.py", *what], capture_output=True, text=True)
    if done.returncode:
        raise Skip(last_line(done.stderr))
    p = json.loads(done.stdout.splitlines()[-1])
    return p["files"] / (p["sec"] + lead), p


def run(env, new_store, packed, ddpfs):
    """new_store: makes the store for one row; ddpfs: the peer that is ddpfs."""
    rates = {}
    for peer in (ddpfs, *LIBRARIES, *MOUNTS):
        try:
            with new_store() as store:
                rates[peer], p = measure(env, store, packed, peer)
                text = f"{rates[peer]:.0f} files/s, {p['files']} of {packed.files} files, {store.counts()[0]} requests"
        except Skip as why:
            text = f"not measured: {why}"
        print(f"loaders    {packed.kind}, {peer.__name__}: {text}", flush=True)
    if ddpfs not in rates:
        return
    for peer in MOUNTS:
        if peer in rates:
            bar.show(f"{packed.kind}: DataLoader, ddpfs / {peer.__name__}", rates[ddpfs] / rates[peer], 10, "x", above=True)
    best = max((peer for peer in LIBRARIES if peer in rates), key=rates.get, default=None)
    if best:
        bar.show(f"{packed.kind}: DataLoader, ddpfs / {best.__name__}, the best library", rates[ddpfs] / rates[best], 1.2,
                 "x", above=True)
