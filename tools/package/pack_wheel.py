# SPDX-License-Identifier: Apache-2.0
"""Packs the tree that tools/package/wheel built into a wheel, and prints the wheel's path.

    python pack_wheel.py ROOT TREE LICENSES PLATFORM OUTPUT

ROOT is the checkout.  TREE holds bin/, lib/ and share/ as `ninja install` places them.  The wheel has them below
ddpfs/native/, where the programs find their libraries, and the Python module finds both.  The same input gives the
same bytes."""

import base64
import hashlib
import re
import sys
import zipfile
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.9 and 3.10
    import tomli as tomllib

PROGRAMS = ("mkshard", "ddpfs", "mount.ddpfs")
# Only where programs look for them by themselves: `man` below the environment's bin/, and bash-completion.
SHARED = ("man", "bash-completion", "doc")


def project(root):
    """What pyproject.toml says; its version is that of meson.build."""
    said = tomllib.loads((root / "gpu_stage/python/pyproject.toml").read_text())["project"]
    version = re.search(r"^  version: '(.*)',$", (root / "meson.build").read_text(), re.M)[1]
    assert version == said["version"], "meson.build and pyproject.toml have different versions"
    return said


def module_files(root):
    """The Python module, and the entry points."""
    for path in sorted((root / "gpu_stage/python/ddpfs").glob("*.py")):
        yield f"ddpfs/{path.name}", path.read_bytes(), 0o644
    yield "_ddpfs_programs.py", (root / "tools/package/native.py").read_bytes(), 0o644


def native_files(tree):
    """The programs and libraries, not what compiles against them.  Of the links of a library, which a wheel cannot have, it
    gets the name that programs ask for."""
    for folder in ("bin", "lib"):
        for path in sorted((tree / folder).rglob("*")):
            unwanted = path.is_symlink() or path.suffix == ".a" or {"__pycache__", "pkgconfig"} & set(path.parts)
            if path.is_file() and not unwanted:
                program = folder == "bin" or ".so" in path.name
                name = re.sub(r"(libddpfs_stage\.so\.\d+)\..*", r"\1", str(path.relative_to(tree)))
                yield f"ddpfs/native/{name}", path.read_bytes(), 0o755 if program else 0o644


def shared_files(tree, data):
    for folder in SHARED:
        for path in sorted((tree / "share" / folder).rglob("*")):
            if path.is_file():
                yield f"{data}/data/share/{path.relative_to(tree / 'share')}", path.read_bytes(), 0o644


def metadata(root, said, licenses):
    lines = ["Metadata-Version: 2.4", f"Name: {said['name']}", f"Version: {said['version']}", f"Summary: {said['description']}",
             "License-Expression: Apache-2.0", *(f"License-File: {n}" for n in licenses),
             f"Requires-Python: {said['requires-python']}", *(f"Requires-Dist: {n}" for n in said["dependencies"])]
    for extra, needed in said["optional-dependencies"].items():
        lines += [f"Provides-Extra: {extra}", *(f'Requires-Dist: {n}; extra == "{extra}"' for n in needed)]
    lines += ["Description-Content-Type: text/markdown", ""]
    return "\n".join(lines) + "\n" + (root / "tools/package/DESCRIPTION.md").read_text()


def entry_points(said):
    groups = {"console_scripts": {p: f"_ddpfs_programs:{p.replace('.', '_')}" for p in PROGRAMS}, **said["entry-points"]}
    return "\n".join("".join([f"[{group}]\n", *(f"{n} = {place}\n" for n, place in names.items())])
                     for group, names in groups.items())


def pack(root, tree, licenses, platform, output):
    """Returns the wheel's path."""
    said = project(root)
    name, version = said["name"], said["version"]
    tag = f"py3-none-{platform}"
    info = f"{name}-{version}.dist-info"
    texts = {str(p.relative_to(licenses)): p for p in sorted(licenses.rglob("*")) if p.is_file()}
    entries = [*module_files(root), *native_files(tree), *shared_files(tree, f"{name}-{version}.data")]
    entries += [(f"{info}/licenses/{n}", p.read_bytes(), 0o644) for n, p in texts.items()]
    entries += [
        (f"{info}/METADATA", metadata(root, said, texts).encode(), 0o644),
        (f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: ddpfs\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), 0o644),
        (f"{info}/entry_points.txt", entry_points(said).encode(), 0o644)]
    record = []
    wheel = output / f"{name}-{version}-{tag}.whl"
    unfinished = wheel.with_suffix(".unfinished")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path, content, mode in entries:
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(content)}\n")
            add(archive, path, content, mode)
        add(archive, f"{info}/RECORD", "".join([*record, f"{info}/RECORD,,\n"]).encode(), 0o644)
    unfinished.replace(wheel)
    return wheel


def add(archive, path, content, mode):
    entry = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
    entry.external_attr = (0o100000 | mode) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, content)


if __name__ == "__main__":
    print(pack(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], Path(sys.argv[5])))
