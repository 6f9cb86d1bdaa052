# SPDX-License-Identifier: Apache-2.0
"""pyarrow on a mount: its file systems, datasets of Parquet and Arrow files, memory maps."""

import pytest

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
ds = pytest.importorskip("pyarrow.dataset", reason="pyarrow is not installed")
fs = pytest.importorskip("pyarrow.fs", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")

ROWS = 20_000


def table(part):
    numbers = pa.array(range(part * ROWS, (part + 1) * ROWS), pa.int64())
    return pa.table({"number": numbers, "text": pa.array([f"row {n} " * (n % 5) for n in numbers.to_pylist()])})


@pytest.fixture
def mounted(scratch, pack, mount):
    """(plain directory, mount): hive/part=N/data.parquet, arrow/N.arrow"""
    source = scratch / "source"
    (source / "arrow").mkdir(parents=True)
    for part in range(4):
        (source / f"hive/part={part}").mkdir(parents=True)
        pq.write_table(table(part), source / f"hive/part={part}/data.parquet", row_group_size=3000)
        with pa.OSFile(str(source / f"arrow/{part}.arrow"), "wb") as sink, pa.ipc.new_file(sink, table(0).schema) as w:
            w.write_table(table(part), max_chunksize=1000)
    return source, mount(pack(source), "view=all").path


def test_file_system(mounted):
    source, mnt = mounted
    local = fs.LocalFileSystem(use_mmap=False)
    for root in (source, mnt):
        found = local.get_file_info(fs.FileSelector(str(root), recursive=True))
        assert len([f for f in found if f.type == fs.FileType.File]) == 8
    sub = fs.SubTreeFileSystem(str(mnt), local)
    for path in ("arrow/1.arrow", "hive/part=2/data.parquet"):
        with sub.open_input_file(path) as file, sub.open_input_stream(path) as stream:
            data = (source / path).read_bytes()
            assert file.size() == len(data) and file.read_at(77, 4000) == data[4000:4077]
            assert stream.read() == data


@pytest.mark.parametrize("memory_map", [False, True])
def test_parquet_dataset(mounted, memory_map):
    for root in mounted:
        data = ds.dataset(str(root / "hive"), format="parquet", partitioning="hive",
                          filesystem=fs.LocalFileSystem(use_mmap=memory_map))
        assert data.count_rows() == 4 * ROWS
        rows = data.to_table(columns=["number", "part"], filter=(ds.field("part") == 2) & (ds.field("number") < 45_000))
        assert sorted(rows["number"].to_pylist()) == list(range(40_000, 45_000))
        assert pq.read_table(root / "hive/part=3/data.parquet", memory_map=memory_map, partitioning=None) == table(3)


def test_arrow_files_mapped(mounted):
    for root in mounted:
        for part in range(4):
            with pa.memory_map(str(root / f"arrow/{part}.arrow")) as mapped:
                assert pa.ipc.open_file(mapped).read_all() == table(part)
        data = ds.dataset(str(root / "arrow"), format="ipc")
        assert data.to_table().sort_by("number")["number"].to_pylist() == list(range(4 * ROWS))
