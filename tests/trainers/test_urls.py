# SPDX-License-Identifier: Apache-2.0
"""Libraries that take ddpfs:// URLs, each in a process of .venv-trainers: urls_read.py has what they read."""

import pytest

from helpers import datasets, tools
from trainers import heavy, launch

pytestmark = pytest.mark.trainers


@pytest.mark.parametrize("package, library", [("pandas", "pandas"), ("datasets", "hugging_face"),
                                              ("datasets", "hugging_face_streaming"), ("ray", "ray_data"),
                                              ("lightning", "lightning")])
def test_a_library_reads_by_url(package, library, pack, scratch):
    heavy.need(package)
    pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    dataset = pack(datasets.write_tables(scratch / "tables"))
    # Offline, Hugging Face datasets refuses every URL.
    done = heavy.run(launch.HERE / "urls_read.py", library, dataset, scratch / "work",
                     env={"PYTHONPATH": tools.ROOT / "gpu_stage/python", "HF_HOME": scratch / "hf",
                          "HF_HUB_OFFLINE": 0,
                          "DDPFS_STAGE_LIB": tools.build_dir() / "gpu_stage/libddpfs_stage.so"}, timeout=280)
    assert done.stdout.splitlines()[-1] == f"{library}: 3999 is the last of 4000"
