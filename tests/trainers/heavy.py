# SPDX-License-Identifier: Apache-2.0
"""Trainers that need heavy packages: they run with the Python of an environment of their own, .venv-trainers, which
`tests/run --trainers` makes (by hand: DDPFS_TRAINERS=FOLDER).  The tests themselves run in .venv and import none of it."""

import importlib.metadata
import os
from pathlib import Path

import pytest

from helpers import tools
from trainers import launch

VENV = Path(os.environ.get("DDPFS_TRAINERS", tools.ROOT / ".venv-trainers"))
PYTHON = VENV / "bin/python"
ENV = {**launch.ENV, "LD_LIBRARY_PATH": VENV / "stubs", "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": 1,
       "TF_CPP_MIN_LOG_LEVEL": 3, "USE_TF": 0, "RAY_USAGE_STATS_ENABLED": 0, "PYTHONDONTWRITEBYTECODE": 1}


def need(package):
    """Skips the test with the reason why `package` (a name of tests/requirements-trainers.txt) is not there."""
    if not PYTHON.exists():
        pytest.skip(f"{package}: there is no {VENV}; tests/run --trainers makes it")
    missing = VENV / "missing" / package
    if missing.exists():
        pytest.skip(f"{package} cannot be installed: {missing.read_text().strip()}")


def version(package):
    """What is installed of it there."""
    places = [str(place) for place in VENV.glob("lib/python*/site-packages")]
    return next(iter(importlib.metadata.distributions(name=package, path=places))).version


def run(*argv, **kwargs):
    return tools.run([PYTHON, *argv], env={**ENV, **kwargs.pop("env", {})}, **kwargs)


def torchrun(world, *argv, **kwargs):
    return launch.torchrun(world, *argv, python=PYTHON, env=ENV, **kwargs)
