# SPDX-License-Identifier: Apache-2.0
"""ddpfs: samples of a packed dataset in epoch order, each rank its own part.

    Stage          batches in memory by libddpfs_stage, no mount
    mounted        a mount for the length of a `with` block
    Mount.follow   announces an order to a mount, which reads it ahead
    ddpfs.fsspec   ddpfs:// URLs for pandas, pyarrow, Hugging Face datasets ... (imports fsspec)
    ddpfs.torch    Stage as a PyTorch IterableDataset (imports torch)
"""

import importlib

from ddpfs.follow import Files
from ddpfs.mount import Mount, mounted
from ddpfs.stage import Batch, Stage, StageError

__all__ = ["Batch", "Files", "Mount", "Stage", "StageError", "mounted"]


def __getattr__(name):
    """Imports ddpfs.fsspec and ddpfs.torch when they are first used: `import ddpfs` needs neither library."""
    if name in ("fsspec", "torch"):
        return importlib.import_module(f"ddpfs.{name}")
    raise AttributeError(f"module 'ddpfs' has no attribute '{name}'")
