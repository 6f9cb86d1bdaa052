# SPDX-License-Identifier: Apache-2.0
"""PyTorch's DataLoader over the styles of datasets, with 0, 2 and 4 workers, persistent or not, pinned or not."""

import hashlib
import json
import sys

import pytest

from helpers import tools
from trainers import launch

pytest.importorskip("torch", reason="torch is not installed")


def read(style, root, report):
    tools.run([sys.executable, "-W", "ignore", launch.HERE / "loaders_read.py", style, root, report], env=launch.ENV)
    return json.loads(report.read_text())


@pytest.mark.parametrize("style", ["map", pytest.param("iterable", marks=pytest.mark.trainers),
                                   pytest.param("datapipes", marks=pytest.mark.trainers)])
def test_every_epoch_is_every_file(style, tree, pack, mount, scratch):
    if style == "datapipes":
        pytest.importorskip("torch.utils.data.datapipes.iter", reason="this torch has no datapipes any more")
    source, files = tree
    mounted = read(style, mount(pack(source), "view=all").path, scratch / "mounted")
    everything = {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
    assert len(mounted) == 10
    for how, epochs in mounted.items():
        for epoch in epochs:
            assert len(epoch) == len(files) and dict(epoch) == everything, how
    if style == "map":  # the others go by the listing's own order, or by who is faster
        assert mounted == read(style, source, scratch / "plain")
