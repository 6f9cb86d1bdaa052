# SPDX-License-Identifier: Apache-2.0
"""tools/MIGRATION.md: its scripts bring the data of other formats into a dataset, without a byte changed."""

import io
import os
import pickle
import re
import shutil
import subprocess
import sys
import tarfile

import pytest

from helpers import tools

SAMPLES, CLASSES = 24, 3


def script(name):
    """A script of the page."""
    page = (tools.ROOT / "tools/MIGRATION.md").read_text()
    return re.search(rf"^```python\n# {re.escape(name)}\n(.*?)^```", page, re.M | re.S).group(1)


@pytest.fixture
def work(build_dir, scratch):
    for name in ("export_tar.py", "from_mds.py", "from_litdata.py", "pairs.py"):
        (scratch / name).write_text(script(name))
    return scratch


def images():
    """[(bytes, class)]"""
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    made = []
    for i in range(SAMPLES):
        data = io.BytesIO()
        image.new("RGB", (8, 8), (i * 9, 255 - i * 9, 128)).save(data, "JPEG")
        made.append((data.getvalue(), i % CLASSES))
    return made


def packed(source, dataset):
    """Gives a tar stream of `source`, a command, to `mkshard pack` as the page does; the files of the dataset."""
    with subprocess.Popen(source, stdout=subprocess.PIPE, cwd=dataset.parent) as stream:
        tools.run([tools.tool("mkshard"), "pack", "/dev/stdin", dataset], stdin=stream.stdout)
    assert stream.returncode == 0
    tools.mkshard("verify", dataset)
    tools.mkshard("extract", dataset, dataset.parent / "out")
    return {str(p.relative_to(dataset.parent / "out")): p.read_bytes()
            for p in (dataset.parent / "out").rglob("*") if p.is_file()}


def expected(samples):
    return {f"train/{label}/{i:08d}.jpg": data for i, (data, label) in enumerate(samples)}


def test_webdataset_is_indexed_where_it_lies(work):
    pytest.importorskip("torch", reason="torch is not installed")
    (work / "wds").mkdir()
    samples = images()
    with tarfile.open(work / "wds/train-000000.tar", "w") as tar:
        for i, (data, label) in enumerate(samples):
            for extension, part in ("jpg", data), ("cls", str(label).encode()):
                member = tarfile.TarInfo(f"{i:06d}.{extension}")
                member.size = len(part)
                tar.addfile(member, io.BytesIO(part))
    before = (work / "wds/train-000000.tar").read_bytes()
    assert "samples: by key" in (said := tools.mkshard("index", work / "wds")).stdout + said.stderr
    assert (work / "wds/train-000000.tar").read_bytes() == before
    (work / "mnt").mkdir()
    done = tools.run([tools.tool("ddpfs"), "exec", "-o", "view=all", work / "wds", work / "mnt", "--", sys.executable,
                      work / "pairs.py", work / "mnt"])
    assert done.stdout.split() == [str(SAMPLES)]


def test_a_tar_stream_of_the_export_script(work):
    samples = images()
    (work / "feed.py").write_text(
        "import export_tar, pickle, sys\nexport_tar.write(pickle.load(open(sys.argv[1], 'rb')))\n")
    (work / "samples").write_bytes(pickle.dumps(sorted(expected(samples).items())))
    assert packed([sys.executable, work / "feed.py", work / "samples"], work / "x.ddpfs") == expected(samples)


def test_mosaicml_streaming(work):
    streaming = pytest.importorskip("streaming", reason="mosaicml-streaming is not installed")
    samples = images()
    with streaming.MDSWriter(out=str(work / "mds"), columns={"jpg": "bytes", "cls": "int"}) as writer:
        for data, label in samples:
            writer.write({"jpg": data, "cls": label})
    assert packed([sys.executable, work / "from_mds.py", work / "mds"], work / "x.ddpfs") == expected(samples)


def test_litdata(work):
    pytest.importorskip("litdata", reason="litdata is not installed")
    samples = images()
    (work / "in").mkdir()
    for i, (data, label) in enumerate(samples):
        (work / f"in/{i:08d}-{label}.jpg").write_bytes(data)
    (work / "optimize.py").write_text(
        "import litdata, sys\nfrom pathlib import Path\n"
        "def one(p):\n    return {'jpg': Path(p).read_bytes(), 'cls': int(Path(p).stem[-1])}\n"
        "if __name__ == '__main__':\n"
        "    litdata.optimize(fn=one, inputs=sorted(map(str, Path('in').iterdir())), output_dir='lit',\n"
        "                     chunk_bytes='8KB', num_workers=1)\n")
    subprocess.run([sys.executable, "optimize.py"], cwd=work, check=True, capture_output=True,
                   env=os.environ | {"HOME": str(work)})
    assert packed([sys.executable, work / "from_litdata.py", "lit"], work / "x.ddpfs") == expected(samples)


def test_squashfs(work):
    for program in ("sqfs2tar", "gensquashfs"):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed (Debian: squashfs-tools-ng)")
    for path, data in (samples := expected(images())).items():
        (work / "in" / path).parent.mkdir(parents=True, exist_ok=True)
        (work / "in" / path).write_bytes(data)
    tools.run(["gensquashfs", "-q", "-D", work / "in", work / "x.squashfs"])
    assert packed(["sqfs2tar", work / "x.squashfs"], work / "x.ddpfs") == samples
