# SPDX-License-Identifier: Apache-2.0
"""TextCNN on text files under torchrun: two ranks, on plain files and on a mount of all files."""

import random

import pytest

from trainers import launch

pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.trainers

VOCABULARY = {"earth": "soil rock grain field stone clay mud hill".split(), "sea": "wave salt tide fish deep reef sail".split()}
COMMON = "the a of and to in is that it was für naïve 海 с".split()


def write_corpus(root, documents=120):
    rng = random.Random(5)
    for name, words in VOCABULARY.items():
        (root / name).mkdir(parents=True)
        for i in range(documents):
            lines = [" ".join(rng.choices(COMMON + words, k=rng.randint(1, 12))) for _ in range(rng.randint(0, 40))]
            (root / name / f"{i:03d}.txt").write_text("\n".join(lines), encoding="utf-8")


def train(root, stem):
    launch.torchrun(2, launch.HERE / "textcnn_train.py", "--train", root, "--epochs", 4, "--report", stem)
    return launch.reports(stem, 2)


def test_textcnn(scratch, pack, mount):
    write_corpus(scratch / "corpus")
    plain = train(scratch / "corpus", scratch / "plain")
    mounted = train(mount(pack(scratch / "corpus"), "view=all").path, scratch / "mounted")
    assert mounted == plain
    for epoch in range(4):
        assert sorted(mounted[0]["samples"][epoch] + mounted[1]["samples"][epoch]) == list(range(240))
    losses = mounted[0]["losses"]
    assert sum(losses[-8:]) < sum(losses[:8]), "nothing was learnt"
