# SPDX-License-Identifier: Apache-2.0
"""mkshard verify, cat and extract of datasets in a store."""

import pytest

from helpers import datasets, tools

FAULTS = {"latency_ms": 2, "p503": 0.05, "reset": 0.03, "cut": 0.03}


@pytest.fixture
def stored(build_dir, scratch, http_store):
    """A packed dataset at `URL/train` and its source."""
    files = datasets.write_tree(scratch / "source", classes=3, per_class=60, sizes=(0, 1, 20_000, 65_536, 3_000_000))
    tools.mkshard("pack", "--shard-size=40M", scratch / "source", http_store.root / "train")
    return f"{http_store.url}/train", files


def test_verify_passes_over_a_store_that_fails(stored, http_store):
    http_store.set(flip=0.05, **FAULTS)
    assert "all good" in tools.mkshard("verify", stored[0]).stdout


def test_verify_names_the_file_of_a_flipped_byte(stored, http_store):
    url, files = stored
    name = next(n for n, data in sorted(files.items()) if len(data) == 3_000_000)
    shard = next(p for p in sorted((http_store.root / "train").glob("shard-*")) if files[name] in p.read_bytes())
    data = bytearray(shard.read_bytes())
    data[data.index(files[name]) + 2_000_000] ^= 1
    shard.write_bytes(data)
    done = tools.run([tools.tool("mkshard"), "verify", url], check=False)
    assert done.returncode == 1 and name in done.stderr and "1 of 180 files are bad" in done.stderr, done.stderr


def test_extract_gives_the_source_under_faults(stored, http_store, scratch):
    url, files = stored
    http_store.set(flip=0.02, **FAULTS)
    tools.mkshard("extract", url, scratch / "out")
    assert datasets.read_tree(scratch / "out") == files


def test_cat_gives_the_source_under_faults(stored, http_store):
    url, files = stored
    http_store.set(**FAULTS)
    name = next(n for n, data in sorted(files.items()) if len(data) == 3_000_000)
    done = tools.run([tools.tool("mkshard"), "cat", url, name], text=False, check=False)
    assert done.stdout == files[name]


def test_a_shard_that_is_not_there_is_named(stored, http_store):
    (http_store.root / "train/shard-000000.tar").unlink()
    done = tools.run([tools.tool("mkshard"), "verify", stored[0]], check=False)
    assert done.returncode == 1 and "shard-000000.tar" in done.stderr, done.stderr
