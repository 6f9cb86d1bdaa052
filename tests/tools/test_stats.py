# SPDX-License-Identifier: Apache-2.0
"""`mkshard stats`: an order measured beside a true random permutation."""

import json
import os
import signal
import subprocess
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from helpers import tools
from helpers.waiting import wait_until

CLASSES, PER_CLASS = 1000, 200


@pytest.fixture(scope="module")
def dataset(build_dir, tmp_path_factory):
    """The index of 1,000 classes of 200 samples of 4 KiB, packed in order of their names (pack --no-shuffle)."""
    place = tmp_path_factory.mktemp("stats") / "dataset"
    tools.run([build_dir / "tests" / "shard" / "make_index", place, CLASSES, PER_CLASS, 4096, "sorted"])
    return place


def stats(dataset, *args):
    return json.loads(tools.mkshard("stats", "--json", *args, dataset).stdout)


def test_full_is_as_random_as_random(dataset):
    s = stats(dataset, "-o", "order=full")
    assert s["order"] == "full" and s["samples"] == CLASSES * PER_CLASS and s["classes"] == CLASSES
    assert abs(s["distinct_ratio"] - 1) < 0.01
    assert abs(s["ours"]["position_chi"] - 1) < 0.1
    assert all(abs(c) < 0.01 for c in s["ours"]["class_correlation"])


def test_chunk_of_sorted_classes_reaches_the_bar(dataset):
    """At least 0.9x of random's distinct classes per 256 samples, lag-1 correlation within 0.05."""
    s = stats(dataset, "-o", "order=chunk,pool=256M", "--epochs", "3")
    assert s["chunk_samples"] == 32 and s["batch"] == 256
    assert s["distinct_ratio"] >= 0.9
    assert abs(s["ours"]["class_correlation"][0]) <= 0.05
    assert abs(s["ours"]["place_correlation"][0]) <= 0.05


def test_a_small_pool_is_found_out(dataset):
    s = stats(dataset, "-o", "order=chunk,pool=1M")
    assert s["distinct_ratio"] < 0.2 and s["ours"]["class_correlation"][0] > 0.05
    assert s["ours"]["position_chi"] > 10 and abs(s["random"]["position_chi"] - 1) < 0.1


def test_one_rank_and_one_class_directory(dataset):
    s = stats(dataset, "-o", "order=full,rank=1,world=8")
    assert s["ours"]["batches"] == s["random"]["batches"] == 5 * (CLASSES * PER_CLASS // 8 // 256)
    s = stats(dataset, "-o", "order=chunk,subdir=class_0007", "--batch", "8")
    assert s["classes"] == 1 and s["samples"] == PER_CLASS
    assert s["ours"]["distinct_mean"] == 1 and s["ours"]["class_correlation"][0] is None


def test_text_and_plot(dataset, scratch):
    done = tools.mkshard("stats", "-o", "order=chunk", "--svg", scratch / "plot.svg", dataset)
    assert "as a part of random's mean" in done.stdout and "1000 classes" in done.stdout
    root = xml.parse(scratch / "plot.svg").getroot()
    texts = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "How random is order=chunk?" in texts and "true random permutation" in texts
    assert "lag, samples" in texts and "correlation" in texts
    curves = [p.get("d") for p in root.iter("{http://www.w3.org/2000/svg}path")]
    assert len(curves) == 2 + 4 * 2 and all(d.startswith("M") for d in curves)
    assert "nan" not in (scratch / "plot.svg").read_text() and "inf" not in "".join(curves)


SVG = "{http://www.w3.org/2000/svg}"


def first_panel(picture):
    """[[(x, y)] of a curve] of the panel of distinct classes through the epoch."""
    curves = [p.get("d") for p in xml.parse(picture).getroot().iter(f"{SVG}path")]
    return [[tuple(map(float, point.split())) for point in d[1:].removesuffix("h0").split("L") if point]
            for d in curves[2:4]]


@pytest.mark.parametrize("batch, batches", [(256, 25), (3000, 2), (6601, 1)])
def test_an_epoch_of_fewer_batches_than_bins_is_drawn(build_dir, scratch, batch, batches):
    """One line through all of its batches, a dot for one."""
    tools.run([build_dir / "tests" / "shard" / "make_index", scratch / "d", 7, 943, 4096, "sorted"])  # 6,601 samples
    tools.mkshard("stats", "--batch", batch, "--epochs=1", f"--svg={scratch}/plot.svg", scratch / "d")
    for curve in first_panel(scratch / "plot.svg"):
        assert len(curve) == batches and curve == sorted(curve)
    text = (scratch / "plot.svg").read_text()
    assert "nan" not in text and "inf" not in text and (batches > 1 or 'h0"' in text)


def test_wrong_use(dataset, scratch):
    for args, code, word in [(["-o", "order=x", dataset], 2, "order=x"), ([], 2, "DATASET"),
                             (["--batch", "0", dataset], 2, "--batch"), ([scratch / "none"], 1, "none"),
                             (["--svg", scratch / "no" / "plot.svg", dataset], 1, "plot.svg")]:
        done = tools.mkshard("stats", *args, check=False)
        assert done.returncode == code and word in done.stderr, done.stderr


def test_an_index_that_changes_meanwhile_gives_no_figures(build_dir, scratch):
    dataset = scratch / "dataset"
    tools.run([build_dir / "tests" / "shard" / "make_index", dataset, CLASSES, PER_CLASS, 4096, "sorted"])
    process = subprocess.Popen([tools.tool("mkshard"), "stats", "--epochs=100", dataset], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)

    def measures():
        assert process.poll() is None
        ticks = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11]
        return int(ticks) >= os.sysconf("SC_CLK_TCK") / 4

    wait_until(measures, "a quarter of a second of measuring")
    os.kill(process.pid, signal.SIGSTOP)
    os.utime(dataset / "index.ddpfs")
    os.kill(process.pid, signal.SIGCONT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 1 and out == "" and "index.ddpfs" in err, (out, err)


def test_groups_keep_what_redeal_says(dataset):
    """9 epochs of which each 3 have the same groups: 6 of 8 pairs of epochs keep all, 2 keep a quarter."""
    s = stats(dataset, "-o", "order=full,groups=4,redeal=3", "--epochs", "9")
    assert (s["groups"], s["redeal"]) == (4, 3)
    assert abs(s["ours"]["group_kept"] - (6 + 2 / 4) / 8) < 0.01 and abs(s["random"]["group_kept"] - 1 / 4) < 0.01
    assert abs(s["ours"]["group_seen"] - (1 - 0.75 ** 3)) < 0.01 and abs(s["random"]["group_seen"] - (1 - 0.75 ** 9)) < 0.01
    assert abs(s["ours"]["group_chi"] - 1) < 0.1 and abs(s["random"]["group_chi"] - 1) < 0.1
    assert abs(s["distinct_ratio"] - 1) < 0.01


def test_groups_of_chunks_of_sorted_classes_are_less_even(dataset):
    s = stats(dataset, "-o", "order=chunk,groups=4", "--epochs", "2")
    assert s["ours"]["group_kept"] == 1 and abs(s["ours"]["group_seen"] - 0.25) < 0.001
    assert s["ours"]["group_chi"] > 10
    text = tools.mkshard("stats", "-o", "order=chunk,groups=4", "--epochs", "2", dataset).stdout
    assert "groups=4" in text and "samples a group had an epoch ago" in text


def test_without_groups_nothing_is_said_of_them(dataset):
    s = stats(dataset, "-o", "order=full", "--epochs", "1")
    assert s["groups"] == 1 and s["ours"]["group_kept"] is None and s["ours"]["group_seen"] is None
    assert "group" not in tools.mkshard("stats", "-o", "order=full", "--epochs", "1", dataset).stdout
