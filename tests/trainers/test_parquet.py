# SPDX-License-Identifier: Apache-2.0
"""A Parquet file far larger than the mount's memory, opened by pyarrow: read and verified by the block, never whole."""

import hashlib

import pytest

from helpers import tools

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
np = pytest.importorskip("numpy", reason="numpy is not installed")

MIB = 1 << 20
GROUP_BYTES = 32 * MIB


def column(group):
    """Incompressible, different in each row group, the same in each run."""
    return np.random.default_rng(group).integers(0, 1 << 62, GROUP_BYTES // 8, dtype=np.int64)


def write(path, groups):
    schema = pa.schema([("x", pa.int64())])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for group in range(groups):
            writer.write_table(pa.table({"x": column(group)}), row_group_size=GROUP_BYTES // 8)


def resident_bytes(pid):
    """Anonymous memory of a process: its own, without pages that it maps from files."""
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no RssAnon")


def check(scratch, mount, groups, memory):
    source = scratch / "source"
    source.mkdir()
    write(source / "big.parquet", groups)
    tools.mkshard("pack", source, scratch / "dataset")
    (source / "big.parquet").unlink()
    m = mount(scratch / "dataset", f"view=all,memory={memory // MIB}M")
    server = m.server_pid()
    file = pq.ParquetFile(m.path / "big.parquet")
    assert file.num_row_groups == groups
    most = 0
    for group in [*range(groups), 0, groups // 2]:
        got = file.read_row_group(group).column("x").to_numpy()
        most = max(most, resident_bytes(server))
        assert hashlib.sha256(got).digest() == hashlib.sha256(column(group)).digest(), f"row group {group}"
    assert most <= memory + 64 * MIB
    file.close()


def test_larger_than_memory(scratch, mount):
    check(scratch, mount, groups=6, memory=32 * MIB)


@pytest.mark.trainers
def test_4_gib_with_256_mib(scratch, mount):
    check(scratch, mount, groups=128, memory=256 * MIB)
