# SPDX-License-Identifier: Apache-2.0
"""The wheel for users and the Debian packages in bare Debian systems that debootstrap makes: `tests/run roots`.

They need the network the first time.  The systems stay beside what is built; each test works in a layer above one."""

import os
import sys
import time

import pytest

from helpers.debian_root import DebianRoot, debian_system
from helpers.tools import ROOT
from package.life import DEB_GONE, DEB_USED, NEVER, USE

if os.environ.get("DDPFS_ROOTS") != "debootstrap":
    pytest.skip("bare Debian systems are made by name: tests/run roots", allow_module_level=True)

# What a user's machine has.  The module needs numpy, which pip takes from PyPI: here it is Debian's.
PACKAGES = "python3-venv,python3-numpy,attr,procps"
SUITES = "bullseye", "bookworm", "trixie", "forky"  # Debian 11, 12, 13 and testing
SECONDS = 1800


def system(suite, work):
    return debian_system(suite, PACKAGES, work / f"root-{suite}", SECONDS)


WHEEL = r"""
export PYTHONDONTWRITEBYTECODE=1
python3 -m venv --system-site-packages /opt/venv
find /opt/venv ! -type d | sort >/tmp/before
. /opt/venv/bin/activate
pip install --disable-pip-version-check --no-index /run/host/wheel/*.whl
ln -s "$(command -v mount.ddpfs)" /sbin/mount.ddpfs
upgrade() { pip install --no-index --no-deps --force-reinstall /run/host/wheel/*.whl; }
"""
# pip leaves empty directories.
WHEEL_GONE = r"""
rm /sbin/mount.ddpfs
pip uninstall -y ddpfs
find /opt/venv ! -type d | sort | diff /tmp/before -
rm -r /opt/venv
"""


@pytest.mark.parametrize("suite", SUITES)
def test_the_wheel_is_installed_used_upgraded_and_removed(portable_wheel, package_work, scratch, suite):
    root = DebianRoot(system(suite, package_work), scratch)
    said = root.run(". /etc/os-release; echo Debian $VERSION_CODENAME" + NEVER + "never command -v cc" + WHEEL + USE +
                    WHEEL_GONE, {"wheel": portable_wheel.parent}, timeout=SECONDS).stdout
    assert f"Debian {suite}\n" in said
    assert "samples of the module: 8\n" in said and "module: /opt/venv/" in said
    assert root.left() == []


APT = r"""
apt-get purge --auto-remove -y python3-numpy python3-venv
apt-get update
cd /run/host/deb
install_them() {
    apt-get install -y "$@" ./ddpfs_*.deb ./libddpfs-stage0_*.deb ./libddpfs-stage-dev_*.deb ./python3-ddpfs_*.deb
}
install_them
upgrade() { install_them --reinstall; }
"""
# apt keeps what another package only suggests (manpages), unless it is told not to.
APT_GONE = """apt-get -o APT::AutoRemove::SuggestsImportant=false -o APT::AutoRemove::RecommendsImportant=false \\
    purge --auto-remove -y ddpfs libddpfs-stage0 libddpfs-stage-dev python3-ddpfs
"""


def test_apt_installs_the_packages_with_what_they_need_and_removes_all(packages, package_work, scratch):
    suite = next(line.split("=")[1].strip() for line in open("/etc/os-release") if line.startswith("VERSION_CODENAME="))
    root = DebianRoot(system(suite, package_work), scratch)
    said = root.run(APT + USE + DEB_USED + APT_GONE + DEB_GONE, {"deb": packages["ddpfs"].parent}, timeout=SECONDS).stdout
    assert "samples of the module: 8\n" in said and "module: /usr/lib/python3/dist-packages/ddpfs/" in said
    assert root.left() == []


def test_the_quickstart_with_the_wheel_compiles_nothing(portable_wheel, package_work, scratch, tree):
    source, files = tree
    root = DebianRoot(system("bookworm", package_work), scratch)
    said = root.run(WHEEL + "/run/host/clone/tools/quickstart --installed /run/host/source /tmp/dataset",
                    {"wheel": portable_wheel.parent, "clone": ROOT, "source": source}, timeout=SECONDS).stdout
    assert f"compared     {len(files)} files with the originals: equal" in said


# What a new user does; "install" and "remove" are those of a wheel or of Debian packages.
WALK = NEVER + r"""
cp /run/host/hosts /etc/hosts # torchrun looks for localhost
export PYTHONPATH=/run/host/site OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo
mkdir /tmp/mnt /tmp/out
cd /tmp/out
cat >rank.sh <<'EOF'
exec ddpfs exec -o view=all,log=/tmp/out/rank$RANK.log /tmp/dataset /tmp/mnt -- \
    python3 -B /run/host/trainers/digits_train.py --train /tmp/mnt/train --val /tmp/mnt/val --epochs 1 --report /tmp/out/losses
EOF
date +"began %s.%N"
{install}
mkshard pack /run/host/images /tmp/dataset
python3 -B -m torch.distributed.run --standalone --nproc-per-node=2 --no-python sh rank.sh
date +"ended %s.%N"
cat losses.?.json
ddpfs report -o report.html rank0.log rank1.log
ddpfs mount -o view=all /tmp/dataset /tmp/mnt
ddpfs report -o live.html /tmp/mnt
ddpfs umount /tmp/mnt
{remove}
no_server
hash -r # sh remembers where programs were
for name in ddpfs mkshard mount.ddpfs; do never command -v $name; done
never grep ddpfs /proc/self/mountinfo
cat report.html
"""
WAYS = {
    "wheel": ("""
python3 -m venv /opt/venv
. /opt/venv/bin/activate
pip install --no-index /run/host/package/*.whl
""", """
pip uninstall -y ddpfs
find /opt/venv ! -type d >/tmp/files
never grep ddpfs /tmp/files
rm -r /opt/venv
"""),
    "deb": ("""
apt-get update
apt-get install -y /run/host/package/ddpfs_*.deb /run/host/package/libddpfs-stage0_*.deb /run/host/package/python3-ddpfs_*.deb
""", APT_GONE.replace(" libddpfs-stage-dev", "")),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_new_user_installs_packs_trains_looks_at_the_report_and_uninstalls(request, package_work, scratch, digits, capsys, way):
    """With this environment's torch.  Prints how long it takes to a trained epoch; the first batch comes before."""
    package = request.getfixturevalue("portable_wheel") if way == "wheel" else request.getfixturevalue("packages")["ddpfs"]
    site = os.path.dirname(os.path.dirname(pytest.importorskip("torch").__file__))
    place = system("bookworm", package_work)
    if not (place / f"usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}").exists():
        pytest.skip("torch here is for another Python than that of Debian 12")
    root = DebianRoot(place, scratch)
    install, remove = WAYS[way]
    done = root.run(WALK.replace("{install}", install).replace("{remove}", remove),
                    {"package": package.parent, "site": site, "images": digits, "trainers": ROOT / "tests/trainers",
                     "hosts": "/etc/hosts"}, timeout=SECONDS)
    assert "is not there" not in done.stderr, "ddpfs exec misses its own files"
    said, _, report = done.stdout.partition("<!DOCTYPE html>")
    assert said.count('"accuracy"') == 2
    assert "2 mounts" in report and report.count("<svg") == 6
    assert [path for path in root.left() if path not in ("/etc/hosts", "/run", "/tmp")] == []
    began, ended = (float(line.split()[1]) for line in said.splitlines() if line.startswith(("began ", "ended ")))
    with capsys.disabled():
        print(f"\n{way}: install, pack, mount, train an epoch of {sum(1 for _ in digits.rglob('*.png'))} images: "
              f"{ended - began:.1f} s, at {time.strftime('%H:%M:%S')}")
