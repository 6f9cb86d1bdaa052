# SPDX-License-Identifier: Apache-2.0
"""torchdata: StatefulDataLoader, stopped and resumed, and DataLoader2 (of the last torchdata that has it)."""

import hashlib
import json

import pytest

from trainers import heavy, launch

pytestmark = pytest.mark.trainers


def read(how, root, report):
    heavy.run(launch.HERE / "torchdata_read.py", how, root, report)
    return json.loads(report.read_text())


@pytest.mark.parametrize("how", ["stateful", "dataloader2"])
def test_every_file_once(how, tree, pack, mount, scratch):
    heavy.need("torchdata")
    source, files = tree
    mounted = read(how, mount(pack(source), "view=all").path, scratch / "mounted")
    assert len(mounted) == len(files)
    assert dict(mounted) == {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
    assert mounted == read(how, source, scratch / "plain")
