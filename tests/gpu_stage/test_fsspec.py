# SPDX-License-Identifier: Apache-2.0
"""ddpfs:// URLs: fsspec's own tests for reading, paths and options, and libraries that use them;
tests/trainers/test_urls.py has the heavy ones."""

import errno
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import threading

import pytest

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
pytest.importorskip("numpy", reason="numpy is not installed")

from fsspec.tests.abstract import AbstractFixtures, AbstractGetTests  # noqa: E402

from helpers import datasets, tools  # noqa: E402

PACKAGE = tools.ROOT / "gpu_stage" / "python"
sys.path.insert(0, str(PACKAGE))
from ddpfs import files as opened_files  # noqa: E402
from ddpfs.fsspec import DdpfsFileSystem  # noqa: E402


@pytest.fixture(autouse=True)
def library(build_dir, monkeypatch):
    monkeypatch.setenv("DDPFS_STAGE_LIB", str(build_dir / "gpu_stage" / "libddpfs_stage.so"))
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE))
    yield
    opened_files.forget_all()


@pytest.fixture
def packed(pack, tree):
    """(dataset, {path: bytes})"""
    root, files = tree
    return str(pack(root)), files


@pytest.fixture
def fs():
    return fsspec.filesystem("ddpfs")


# ---- fsspec's own tests ----


class PackedWhenRead(DdpfsFileSystem):
    """Makes what fsspec's tests write, so that they can read it: writes go to a source tree, which is packed again
    before the next read."""

    cachable = False

    def __init__(self, place):
        super().__init__(dataset=str(place / "dataset"))
        self.source, self.target = place / "source", place / "dataset"
        self.source.mkdir()
        (self.source / "always.here").write_bytes(b"a dataset has a file")
        self.dirty = True

    def _locate(self, path):
        if self.dirty:
            tools.mkshard("pack", "--force", self.source, self.target)
            self.dirty = False
        return super()._locate(path)

    def _at(self, path):
        self.dirty = True
        at = self.source / self._strip_protocol(path)
        at.parent.mkdir(parents=True, exist_ok=True)
        return at

    def mkdir(self, path, **_):
        self._at(path).mkdir(exist_ok=True)

    def makedirs(self, path, exist_ok=False):
        self._at(path).mkdir(parents=True, exist_ok=True)

    def touch(self, path, **_):
        self._at(path).touch()

    def pipe(self, path, value):
        self._at(path).write_bytes(value)

    def rm(self, path, recursive=False, maxdepth=None):
        shutil.rmtree(self._at(path))


class TestOfFsspec(AbstractFixtures, AbstractGetTests):
    @pytest.fixture
    def fs(self, scratch):
        return PackedWhenRead(scratch)

    @pytest.fixture
    def fs_path(self):
        return "t"


# ---- paths ----


def check_tree(fs, root, files):
    """Every way to look at the files below `root` ("" or with a "/" at its end) agrees with {path: bytes}."""
    names = {root + path for path in files}
    assert set(fs.find(root)) == names
    assert {p for p, info in fs.find(root, detail=True).items() if info["size"] == len(files[p[len(root):]])} == names
    assert {f"{top}/{name}" if top else name for top, _, here in fs.walk(root) for name in here} == names
    assert set(fs.glob(root + "*/*")) == set(fs.glob(root + "**/*.bin")) == names
    assert fs.cat(sorted(names)) == {root + path: data for path, data in files.items()}
    assert sorted(fs.ls(root, detail=False)) == sorted({root + path.split("/")[0] for path in files})


def test_a_path_names_its_dataset(packed, fs):
    dataset, files = packed
    check_tree(fs, dataset + "/", files)
    some = sorted(files)[3]
    assert fs.cat_file(f"ddpfs://{dataset}/{some}") == files[some]
    with fsspec.open(f"ddpfs://{dataset}/{some}") as f:
        assert f.read() == files[some]
    assert fs.isdir(dataset) and fs.isdir(dataset + "/class_00/") and not fs.isdir(f"{dataset}/{some}")
    assert fs.isfile(f"{dataset}/{some}")


def test_a_path_relative_to_the_working_directory(packed, fs, monkeypatch):
    dataset, files = packed
    monkeypatch.chdir(os.path.dirname(dataset))
    check_tree(fs, os.path.basename(dataset) + "/", files)


def test_an_absolute_path_that_lost_its_slash(packed, fs):
    """As Hugging Face datasets hands it over."""
    dataset, files = packed
    check_tree(fs, dataset.lstrip("/") + "/", files)


def test_the_dataset_as_an_option(packed):
    dataset, files = packed
    check_tree(fsspec.filesystem("ddpfs", dataset=dataset), "", files)
    some = sorted(files)[3]
    for path in ("ddpfs://" + some, "ddpfs:///" + some):
        with fsspec.open(path, dataset=dataset) as f:
            assert f.read() == files[some]


def test_a_slash_in_front_means_the_root_of_that_dataset(packed):
    dataset, files = packed
    fs = fsspec.filesystem("ddpfs", dataset=dataset)
    assert set(fs.glob("/*/*")) == set(fs.find("/")) == set(files)
    assert fs.ls("/class_00") == fs.ls("class_00/")


def test_a_chained_url(packed):
    dataset, files = packed
    some = sorted(files)[3]
    fs, path = fsspec.url_to_fs(f"ddpfs://{some}::file://{dataset}")
    assert (path, fs.dataset, fs.cat_file(path)) == (some, dataset, files[some])
    assert len(fsspec.open_files(f"ddpfs://*/*.bin::file://{dataset}")) == len(files)


@pytest.mark.parametrize(("options", "dataset"), [
    ({"fo": "bucket/images", "target_protocol": "s3"}, "s3://bucket/images"),
    ({"fo": "https://host/images", "target_protocol": "https"}, "https://host/images"),
    ({"dataset": "s3://bucket/images/"}, "s3://bucket/images"),
])
def test_names_of_datasets_in_stores(options, dataset):
    assert DdpfsFileSystem(**options).dataset == dataset


@pytest.mark.parametrize(("options", "says"), [
    ({"fo": "x", "dataset": "y"}, "both name a dataset"),
    ({"fo": "x", "target_protocol": "ftp"}, "s3://, https://"),
    ({"fo": "x", "target_protocol": "s3", "target_options": {"key": "K"}}, "AWS_ACCESS_KEY_ID"),
    ({"dataset": "y", "index": "s3://bucket/index.ddpfs"}, "file of this host: fetch it"),
    ({"dataset": "y", "index": "s3:/bucket/index.ddpfs"}, "file of this host: fetch it"),
])
def test_options_that_cannot_be_obeyed_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        DdpfsFileSystem(**options)


@pytest.mark.parametrize("options", [
    {"fo": "KEY:s3cr3t@bucket/x", "target_protocol": "gs"},
    {"fo": "gs://KEY:s3cr3t%40bucket/x", "target_protocol": "gs"},
    {"fo": "s3://KEY:s3cr3t@bucket/x", "dataset": "y"},
    {"fo": "x", "dataset": "s3://KEY:s3cr3t@bucket/y"},
    {"index": "s3:/KEY:s3cr3t@bucket/x"},
    {"fo": "s3://KEY:s3cr3t@bucket/x", "target_protocol": "s3"},
    {"dataset": "s3:/KEY:s3cr3t@bucket/x"},
])
def test_a_password_in_a_name_is_not_shown(options):
    with pytest.raises((ValueError, OSError)) as refused:
        DdpfsFileSystem(**options).ls("")
    said = f"{refused.value} {refused.value!r}"
    assert not any(word in said for word in ("KEY", "s3cr3t", "bucket")), said


def test_a_store_within_a_path_is_refused_with_what_to_write(fs):
    with pytest.raises(ValueError, match="chained URL"):
        fs.ls("ddpfs://s3://bucket/images/train")


@pytest.mark.parametrize("below", ["/none", "/class_00/none", "/class_00/item_0000.bin/x", "/../x", "/a\0b"])
def test_what_is_not_there(packed, fs, below):
    path = packed[0] + below
    assert not fs.exists(path) and not fs.isfile(path) and not fs.isdir(path)
    for call in (fs.info, fs.ls, fs.cat_file, fs.open, fs.modified):
        with pytest.raises(FileNotFoundError):
            call(path)


def test_a_path_without_a_dataset_says_so(scratch, fs):
    with pytest.raises(FileNotFoundError, match=r"index\.ddpfs"):
        fs.info(f"{scratch}/nothing/here")


def test_a_directory_is_not_opened(packed, fs):
    for call in (fs.open, fs.cat_file):
        with pytest.raises(IsADirectoryError):
            call(packed[0] + "/class_00")


def test_info_names_content_and_time(packed, fs, tree):
    dataset, files = packed
    path = sorted(files)[3]
    info, source = fs.info(f"{dataset}/{path}"), os.stat(tree[0] / path)
    assert info["type"] == "file" and info["size"] == len(files[path]) and info["mtime"] == int(source.st_mtime)
    assert info["mode"] == source.st_mode and fs.modified(f"{dataset}/{path}").timestamp() == info["mtime"]
    tags = {files[p]: fs.info(f"{dataset}/{p}")["ETag"] for p in files}
    assert len(set(tags.values())) == len(tags)  # one a content


# ---- reading ----


@pytest.fixture
def large(scratch, pack):
    """(path of a file of 5 blocks, its bytes)"""
    source = scratch / "large"
    source.mkdir()
    data = os.urandom((4 << 20) + 12345)
    (source / "file").write_bytes(data)
    return f"{pack(source)}/file", data


@pytest.mark.parametrize("options", [{}, {"block_size": 5000}, {"cache_type": "none"}, {"cache_type": "bytes"},
                                     {"cache_type": "all"}], ids=str)
def test_seek_and_read(large, fs, options):
    path, data = large
    with fs.open(path, **options) as f:
        assert f.size == len(data) and f.seekable() and f.readable() and not f.writable()
        end = len(data)
        for at, n in ((0, 10), ((1 << 20) - 5, 10), (end - 3, 10), (end, 1), (2_000_000, 2_500_000), (7, 0)):
            f.seek(at)
            assert f.read(n) == data[at:at + n]
            assert f.tell() == min(at + n, len(data))
        f.seek(-100, os.SEEK_END)
        assert f.read() == data[-100:]
        f.seek(0)
        assert f.read() == data


@pytest.mark.parametrize(("start", "end"), [(None, None), (5, 5), (0, 10), (-10, None), (-10, -3), (None, -1),
                                            (3, 1 << 40), (1 << 40, None), (9, 3), ((1 << 20) - 1, (1 << 20) + 1)])
def test_ranges_mean_what_a_slice_means(large, fs, start, end):
    path, data = large
    assert fs.cat_file(path, start, end) == data[start:end]
    assert fs.cat_ranges([path, path], [start, 0], [end, 3]) == [data[start:end], data[:3]]
    assert fs.cat_ranges([path], start, end) == [data[start:end]]


def test_errors_of_many_reads(packed, fs):
    dataset, files = packed
    good, bad = f"{dataset}/{sorted(files)[3]}", dataset + "/none"
    data = files[sorted(files)[3]]
    assert fs.cat([good, bad], on_error="omit") == {good: data}
    assert isinstance(fs.cat([good, bad], on_error="return")[bad], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat([good, bad])
    assert isinstance(fs.cat_ranges([good, bad], 0, 1)[1], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges([good, bad], 0, 1, on_error="raise")
    with pytest.raises(ValueError, match="differ in length"):
        fs.cat_ranges([good], [0, 1], [1, 2])


def test_a_damaged_block_is_never_given(large, fs):
    path, data = large
    shard = next(e.path for e in os.scandir(os.path.dirname(path)) if e.name.endswith(".tar"))
    with open(shard, "r+b") as f:
        whole = f.read()
        f.seek(whole.index(data[2 << 20:(2 << 20) + 64]))
        f.write(b"damage")
    with fs.open(path, cache_type="none") as f:
        assert f.read(100) == data[:100]
        f.seek(3 << 20)
        assert f.read() == data[3 << 20:]
        f.seek((3 << 20) - 1)
        with pytest.raises(OSError) as caught:
            f.read(1)
        assert caught.value.errno == errno.EBADMSG and "file" in str(caught.value)


@pytest.mark.parametrize("call", [
    lambda fs, p: fs.open(p, "wb"), lambda fs, p: fs.open(p, "ab"), lambda fs, p: fs.open(p + "new", "xb"),
    lambda fs, p: fs.open(p, "r+b"), lambda fs, p: fs.rm(p), lambda fs, p: fs.rm_file(p), lambda fs, p: fs.touch(p),
    lambda fs, p: fs.mkdir(p + "d"), lambda fs, p: fs.makedirs(p + "d"), lambda fs, p: fs.rmdir(p),
    lambda fs, p: fs.mv(p, "x"),
    lambda fs, p: fs.pipe(p, b""), lambda fs, p: fs.pipe_file(p, b""), lambda fs, p: fs.cp_file(p, "x"),
    lambda fs, p: fs.copy(p, p + "2"), lambda fs, p: fs.put_file(__file__, p), lambda fs, p: fs.put(__file__, p)])
def test_nothing_is_written(packed, fs, call):
    dataset, files = packed
    with pytest.raises(OSError, match="read only") as caught:
        call(fs, f"{dataset}/{sorted(files)[3]}")
    assert caught.value.errno == errno.EROFS and isinstance(caught.value, NotImplementedError)


def test_a_replaced_dataset_is_seen_at_the_next_call(scratch, tree, pack, fs):
    root, _ = tree
    dataset = pack(root)
    path = f"{dataset}/class_00/item_0003.bin"
    assert fs.info(path)["size"] == 512
    (root / "class_00/item_0003.bin").write_bytes(b"another")
    tools.mkshard("pack", "--force", root, dataset)
    assert fs.cat_file(path) == b"another"


# ---- processes and threads ----


def test_an_instance_and_an_open_file_are_pickled(large):
    path, data = large
    fs = fsspec.filesystem("ddpfs", dataset=os.path.dirname(path))
    again = pickle.loads(pickle.dumps(fs))
    assert again.cat_file("file", 0, 9) == data[:9] and again.dataset == fs.dataset
    f = fs.open("file")
    f.seek(1000)
    assert pickle.loads(pickle.dumps(f)).read(9) == data[1000:1009]


def _tail(f, fs, path):
    f.seek(-2_000_000, os.SEEK_END)
    return f.read() + fs.cat_file(path, 0, 9)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_read_what_this_one_opened(large, fs, method):
    path, data = large
    f = fs.open(path, cache_type="none")
    assert f.read(3) == data[:3]
    with multiprocessing.get_context(method).Pool(2) as pool:
        for got in pool.starmap(_tail, [(f, fs, path)] * 4, chunksize=1):
            assert got == data[-2_000_000:] + data[:9]
    if method == "fork":  # the file itself, not a pickled one
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                with os.fdopen(writable, "wb") as out:
                    out.write(_tail(f, fs, path))
            finally:
                os._exit(0)
        os.close(writable)
        with os.fdopen(readable, "rb") as back:
            assert back.read() == data[-2_000_000:] + data[:9]
        os.waitpid(child, 0)
    assert f.read(3) == data[3:6]


def test_threads_share_one_open_dataset(packed):
    dataset, files = packed
    seen, together = [], threading.Barrier(8)

    def read():
        together.wait()
        fs = fsspec.filesystem("ddpfs")  # fsspec makes one a thread
        seen.append((opened_files.opened(dataset), fs.cat([f"{dataset}/{p}" for p in files])))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8 and len({id(d) for d, _ in seen}) == 1
    assert all(got == {f"{dataset}/{p}": data for p, data in files.items()} for _, got in seen)


def test_a_program_ends_while_datasets_are_open(packed):
    code = "import fsspec; from ddpfs import fsspec as d; fs = d.DdpfsFileSystem(); f = fs.open({!r}); f.read()".format(
        f"{packed[0]}/{sorted(packed[1])[3]}")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_installed_package_registers_the_protocol(packed, scratch):
    """fsspec finds it by the entry point: nobody imports ddpfs."""
    pytest.importorskip("setuptools", reason="setuptools is not installed")
    shutil.copytree(PACKAGE, scratch / "source", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*install, "--target", scratch / "site", scratch / "source"], capture_output=True, text=True,
                          timeout=120)
    if done.returncode:
        pytest.skip(f"pip cannot build here: {done.stderr.strip().splitlines()[-1:]}")
    code = f"import fsspec; print(len(fsspec.open_files('ddpfs://{packed[0]}/*/*')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": str(scratch / "site")})
    assert done.stdout.strip() == str(len(packed[1])), done.stderr


# ---- libraries ----


@pytest.fixture
def tables(scratch, pack):
    """A dataset of 4 Parquet files and a CSV file, and the rows of the Parquet files."""
    pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    return str(pack(datasets.write_tables(scratch / "tables"))), list(range(4000))


def test_pyarrow_dataset(tables, fs):
    pytest.importorskip("pyarrow.dataset", reason="pyarrow is not installed")
    import pyarrow.dataset
    import pyarrow.fs

    arrow = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs))
    found = pyarrow.dataset.dataset(tables[0] + "/parts", filesystem=arrow, format="parquet")
    assert sorted(found.to_table(columns=["x"]).column("x").to_pylist()) == tables[1]
    assert found.count_rows(filter=pyarrow.dataset.field("part") == 2) == 1000
    assert arrow.get_file_info(tables[0] + "/none").type == pyarrow.fs.FileType.NotFound


class ReadsByUrl:
    """A map-style dataset that reads each file by fsspec, as libraries do with URLs."""

    def __init__(self, root):
        self.fs, self.root = fsspec.url_to_fs(root)
        self.names = self.fs.find(self.root)

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        return self.names[i][len(self.root) + 1:], self.fs.cat_file(self.names[i])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_dataloader(packed, method):
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    dataset, files = packed
    mine = ReadsByUrl(f"ddpfs://{dataset}")
    assert mine[3][1] == files[mine[3][0]]  # the dataset is open before the workers start
    loader = data.DataLoader(mine, batch_size=7, num_workers=2, collate_fn=list, multiprocessing_context=method)
    assert dict(item for batch in loader for item in batch) == files
