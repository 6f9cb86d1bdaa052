# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's tf.data, NVIDIA DALI's file reader on the CPU, Horovod: on a mount what they are on plain files."""

import hashlib
import json

import pytest

from helpers import tools
from helpers.waiting import wait_until
from trainers import heavy, launch

pytestmark = pytest.mark.trainers


def read(program, root, report, *arguments):
    heavy.run(launch.HERE / program, root, *arguments, report)
    return json.loads(report.read_text())


def hashes(files):
    return sorted(hashlib.sha256(p.read_bytes()).hexdigest() for p in files)


def test_tensorflow(digits, pack, mount, scratch):
    heavy.need("tensorflow-cpu")
    mounted = read("tensorflow_read.py", mount(pack(digits), "view=all").path / "val", scratch / "mounted")
    assert mounted == read("tensorflow_read.py", digits / "val", scratch / "plain")
    assert sorted(sha for _, sha in mounted) == hashes((digits / "val").rglob("*.png"))


def test_a_shuffle_buffer_of_tf_data_is_followed(pack, mount, scratch, compared):
    """The sorted list is read ahead; what the buffer still holds stays in memory."""
    heavy.need("tensorflow-cpu")
    for i in range(3000):
        path = scratch / f"tree/class_{i // 300:02d}/img_{i:04d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(500 + i % 7))
    m = mount(pack(scratch / "tree"), "layout=tree,view=all,memory=256M")
    report = read("tensorflow_buffer_read.py", m.path, scratch / "report", 40)
    compared("tensorflow", report["tensorflow"])
    sizes = {f"class_{i // 300:02d}/img_{i:04d}.bin": 500 + i % 7 for i in range(3000)}
    for epoch in report["epochs"]:
        assert dict(epoch) == sizes and len(epoch) == len(sizes)
    wait_until(lambda: tools.stat_json(m.path)["recognise_queue"] == 0)
    stats = tools.stat_json(m.path)
    (sampler,) = stats["samplers"]
    assert sampler["text"].startswith("sorted order behind a shuffle buffer of about "), sampler
    assert sampler["epoch"] == 2 and sampler["opens"] >= 3 * 3000 * 0.97, sampler
    assert stats["recognise_wrong"] == 0


def test_dali(digits, pack, mount, scratch):
    heavy.need("nvidia-dali-cuda120")
    mounted = read("dali_read.py", mount(pack(digits), "view=all").path / "val", scratch / "mounted")
    assert mounted == read("dali_read.py", digits / "val", scratch / "plain")
    for shards in mounted.values():
        seen = {sha for shard in shards for sha, _, _ in shard}
        assert seen == set(hashes((digits / "val").rglob("*.png")))

DALI_SHUFFLES = {
    "DALI random_shuffle": {"random_shuffle": True, "initial_fill": 512},
    "DALI shuffle_after_epoch": {"shuffle_after_epoch": True},
}


@pytest.mark.parametrize("text", DALI_SHUFFLES)
def test_a_shuffle_of_dali_is_followed(text, pack, mount, scratch, compared):
    """DALI's buffer holds files that it has read, so the files that it opens are in the order of its list."""
    heavy.need("nvidia-dali-cuda120")
    paths = [f"class_{i // 300:02d}/img_{i:04d}.bin" for i in range(3000)]
    for path in paths:
        (scratch / "tree" / path).parent.mkdir(parents=True, exist_ok=True)
        (scratch / "tree" / path).write_bytes(path.encode())
    m = mount(pack(scratch / "tree"), "layout=tree,view=all,memory=256M")
    report = read("dali_buffer_read.py", m.path, scratch / "report", json.dumps(DALI_SHUFFLES[text]))
    compared("DALI", report["dali"])
    assert sorted(path for epoch in report["epochs"] for path in epoch) == sorted(3 * paths)
    wait_until(lambda: tools.stat_json(m.path)["recognise_queue"] == 0)
    stats = tools.stat_json(m.path)
    (sampler,) = stats["samplers"]
    assert sampler["text"].startswith(text), sampler
    assert sampler["opens"] >= 2 * 3000 * 0.97, sampler  # the search may take as long as an epoch of this trainer
    assert stats["recognise_wrong"] == 0



def test_horovod(digits, pack, mount, scratch):
    heavy.need("horovod")
    mnt = mount(pack(digits), "view=all").path
    for root, stem in ((digits, "plain"), (mnt, "mounted")):
        heavy.run("-m", "horovod.runner.launch", "-np", 2, "--gloo", heavy.PYTHON, launch.HERE / "horovod_train.py",
                  "--train", root / "train", "--epochs", 2, "--report", scratch / stem)
    mounted = launch.reports(scratch / "mounted", 2)
    assert mounted == launch.reports(scratch / "plain", 2)
    for epoch in range(2):
        count = len(list((digits / "train").rglob("*.png")))
        assert set(mounted[0]["samples"][epoch] + mounted[1]["samples"][epoch]) == set(range(count))
