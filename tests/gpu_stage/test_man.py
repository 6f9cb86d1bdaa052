# SPDX-License-Identifier: Apache-2.0
"""The manual page has every function and option of the header, and the library exports just these functions."""

import re
import shutil

import pytest

from helpers import tools

FOLDER = tools.ROOT / "gpu_stage"
HEADER = (FOLDER / "stage.h").read_text()
PAGE = (FOLDER / "libddpfs_stage.3").read_text()
FUNCTION = re.compile(r"\b(ddpfs_(?:stage|batch|files)_\w+)\(")


def declared():
    return set(re.findall(r"^DDPFS_EXPORT [^;]*?\b(ddpfs_\w+)\(", HEADER, re.M))


def test_every_function_is_in_the_synopsis():
    synopsis = PAGE.split(".SH SYNOPSIS")[1].split(".SH DESCRIPTION")[0]
    assert set(FUNCTION.findall(synopsis)) == declared() != set()


def test_every_option_is_explained():
    struct = re.search(r"struct ddpfs_stage_options \{(.*?)\n\};", HEADER, re.S).group(1)
    code = re.sub(r"/\*.*?\*/", "", struct, flags=re.S)
    fields = set(re.findall(r"\(\*(\w+)\)", code)) | set(re.findall(r"(\w+);", code))
    heads = PAGE.split(".SS Options")[1].split(".SS Batches")[0]
    explained = set(re.findall(r"\b([a-z_]+)\b", " ".join(re.findall(r"^\.TP\n\.IR? (.*)$", heads, re.M))))
    assert explained == fields - {"size"}


def test_the_library_exports_these_functions_and_no_others(build_dir):
    if not shutil.which("nm"):
        pytest.skip("nm is not installed")
    listed = tools.run(["nm", "-D", "--defined-only", build_dir / "gpu_stage" / "libddpfs_stage.so"]).stdout
    exported = {name.split("@")[0] for _, kind, name in map(str.split, listed.splitlines()) if kind != "A"}
    assert exported == declared()


def test_the_page_renders_without_complaint():
    if not shutil.which("mandoc"):
        pytest.skip("mandoc is not installed")
    done = tools.run(["mandoc", "-Tlint", "-Wwarning", FOLDER / "libddpfs_stage.3"], check=False)
    assert done.returncode == 0, done.stdout
