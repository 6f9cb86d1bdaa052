# SPDX-License-Identifier: Apache-2.0
"""The wheel that tools/package/wheel builds: what is in it, and what it does in an environment without anything else."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from helpers import mounts, tools
from helpers.tools import ROOT

sys.path.insert(0, str(ROOT / "tools/package"))
import check_wheel  # noqa: E402


def environment(place, python=None):
    """A fresh virtual environment; returns run(program, ...) -> its output.  It sees nothing of this checkout."""
    tools.run([python or sys.executable, "-m", "venv", "--without-pip", place])
    tools.run([place / "bin/python", "-m", "ensurepip", "--default-pip"])
    clean = {"PATH": f"{place}/bin:{os.environ['PATH']}", "HOME": str(place), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(program, *arguments, check=True):
        done = subprocess.run([place / "bin" / program, *map(str, arguments)], env=clean, capture_output=True, text=True,
                              timeout=300, cwd=place)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory):
    """The wheel in a fresh environment, with this environment's numpy: the test does not download it again."""
    place = tmp_path_factory.mktemp("installed")
    run = environment(place)
    run("python", "-m", "pip", "install", "--no-deps", "--no-index", wheel)
    numpy = Path(__import__("numpy").__file__).parent
    [site] = place.glob("lib/python*/site-packages")
    for folder in numpy, numpy.with_name("numpy.libs"):
        if folder.exists():
            (site / folder.name).symlink_to(folder)
    return run


def test_the_wheel_needs_glibc_2_28_and_nothing_else_and_is_small(portable_wheel, tmp_path):
    assert list(check_wheel.faults(portable_wheel, "2.28", tmp_path)) == []


def test_any_python_may_install_it(portable_wheel):
    assert portable_wheel.name.endswith("-py3-none-manylinux_2_28_x86_64.whl")


def test_a_licence_and_the_source_of_each_bundled_library_are_inside(portable_wheel):
    with zipfile.ZipFile(portable_wheel) as archive:
        names = archive.namelist()
        info = next(n.split("/")[0] for n in names if n.endswith(".dist-info/WHEEL"))
        libraries = {n.rsplit("/", 1)[1] for n in names if n.startswith("ddpfs/native/lib/lib")}
        licences = {n.split("/")[2] for n in names if n.startswith(f"{info}/licenses/") and n.endswith("/copyright")}
        for name in licences:
            assert archive.read(f"{info}/licenses/{name}/SOURCE")
        assert f"{info}/licenses/LICENSE" in names
    of = {"libz": "zlib", "libzstd": "libzstd", "libxxhash": "xxhash", "liburing": "liburing", "libjansson": "jansson",
          "libseccomp": "libseccomp", "libfuse3": "fuse3", "libarchive": "libarchive", "libcrypto": "openssl",
          "libssl": "openssl", "libcurl": "curl"}
    libraries.discard("libddpfs_stage.so.0")
    assert {of[name.split("-ddpfs.")[0]] for name in libraries} == licences


def test_no_path_of_the_building_machine_is_inside(portable_wheel, package_work, tmp_path):
    with zipfile.ZipFile(portable_wheel) as archive:
        archive.extractall(tmp_path)
    for path in check_wheel.elf_files(tmp_path):
        content = path.read_bytes()
        assert bytes(ROOT) not in content and bytes(package_work) not in content, path.name


def test_pack_mount_read_and_unmount_from_the_environment(installed, tree, scratch):
    if not os.path.exists("/dev/fuse"):
        pytest.skip("no /dev/fuse on this machine")
    source, contents = tree
    assert installed("ddpfs", "--version").startswith("ddpfs ")
    installed("mkshard", "pack", source, scratch / "data")
    place = scratch / "mnt"
    place.mkdir()
    installed("ddpfs", "mount", scratch / "data", place, "-o", "view=all")
    for path, content in contents.items():
        assert (place / path).read_bytes() == content
    installed("ddpfs", "umount", place)
    assert not mounts.is_mounted(place)


def test_mount_ddpfs_of_the_environment_is_the_mount_helper(installed):
    assert installed("mount.ddpfs", "--version").startswith("mount.ddpfs ")


def test_the_module_gives_batches_by_the_library_of_the_wheel(installed, tree, scratch):
    source, contents = tree
    installed("mkshard", "pack", source, scratch / "data")
    said = installed("python", "-c", f"""
import ddpfs, ddpfs._lib
print(sum(len(batch) for batch in ddpfs.Stage({str(scratch / "data")!r}, 8)), ddpfs._lib.load()._name)
""")
    seen, library = said.split()
    assert int(seen) == len(contents)
    assert "/ddpfs/native/lib/" in library


@pytest.mark.parametrize("first", ["load()", "import ssl, zlib"])
def test_the_bundled_libraries_and_those_of_python_do_not_mix(portable_wheel, installed, first):
    loaded = installed("python", "-c", f"""
from ddpfs._lib import load
{first}
load()
import hashlib, ssl, zlib
ssl.create_default_context()
hashlib.new("blake2b512")  # the bundled OpenSSL has none
print(open("/proc/self/maps").read())
""")
    assert "/native/lib/libcrypto-ddpfs.so.3" in loaded
    assert {line.split("/")[-1] for line in loaded.splitlines() if "/native/lib/" in line} <= {
        f"{name}-ddpfs.so.{n}" for name, n in (("libz", 1), ("libcrypto", 3), ("libssl", 3), ("libcurl", 4), ("liburing", 2),
                                               ("libjansson", 4), ("libxxhash", 0))} | {"libddpfs_stage.so.0"}


def test_exec_finds_the_interposer_and_the_hook_of_the_environment(installed, tree, scratch):
    if not os.path.exists("/dev/fuse"):
        pytest.skip("no /dev/fuse on this machine")
    source, _ = tree
    installed("mkshard", "pack", source, scratch / "data")
    place = scratch / "mnt"
    place.mkdir()
    said = installed("ddpfs", "exec", "-o", "view=all", scratch / "data", place, "--", "sh", "-c",
                     "echo $LD_PRELOAD; echo $PYTHONPATH")
    preload, pythonpath = said.splitlines()
    assert os.path.realpath(preload).endswith("/ddpfs/native/lib/ddpfs/libddpfs_interpose.so") and os.path.exists(preload)
    assert Path(pythonpath, "sitecustomize.py").exists() and Path(pythonpath).parent.joinpath("ddpfs").is_dir()


def test_nothing_stays_behind_after_uninstall(wheel, tmp_path):
    run = environment(tmp_path)

    def files():  # bin, lib, share: not the home directory, where other programs write
        return {p for folder in ("bin", "lib", "share") for p in (tmp_path / folder).rglob("*") if p.is_file()}

    before = files()
    run("python", "-m", "pip", "install", "--no-deps", "--no-index", wheel)
    assert files() > before
    run("python", "-m", "pip", "uninstall", "-y", "ddpfs")
    assert files() == before


def interpreter(name):
    """Of the system, or of pyenv; None: there is none that runs."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for path in [shutil.which(name), *sorted(versions.glob(f"*/bin/{name}"))]:
        if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            return path
    return None


@pytest.mark.parametrize("python", ["python3.9", "python3.10", "python3.11", "python3.12", "python3.13", "python3.14"])
def test_each_python_runs_the_programs(wheel, tmp_path, python):
    found = interpreter(python)
    if not found:
        pytest.skip(f"no {python} on this machine")
    run = environment(tmp_path, found)
    run("python", "-m", "pip", "install", "--no-deps", "--no-index", wheel)
    assert run("ddpfs", "--version").startswith("ddpfs ")
    [module] = tmp_path.glob("lib/python*/site-packages/ddpfs/_lib.py")  # by itself: `import ddpfs` needs numpy
    run("python", "-c", f"import runpy; runpy.run_path({str(module)!r})['load']()")


def test_the_file_system_of_fsspec_is_registered(installed):
    assert "ddpfs.fsspec:" in installed("python", "-c", """
from importlib.metadata import entry_points
print([e.value for e in entry_points(group="fsspec.specs")])
""")
