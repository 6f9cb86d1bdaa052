# SPDX-License-Identifier: Apache-2.0
"""mount.ddpfs: `mount -t ddpfs`, fstab lines and mount(8)'s exit status."""

import os
import shutil

import pytest

from helpers import mounts, tools


def helper(*arguments, check=False):
    return tools.run([tools.tool("mount.ddpfs"), *arguments], check=check)


def test_mount_t_ddpfs(private, dataset, mountpoint):
    done = private.run(f"""
        mount -t ddpfs -o rank=0,world=2,seed=7 {dataset} {mountpoint}
        ls {mountpoint} | wc -l
        grep {mountpoint} /proc/mounts
        umount {mountpoint}
        grep {mountpoint} /proc/mounts || echo gone
        """)
    lines = done.stdout.splitlines()
    assert lines[0] == "50" and lines[2] == "gone"
    source, target, kind, options = lines[1].split()[:4]
    assert (source, target, kind) == (str(dataset), str(mountpoint), "fuse.ddpfs")
    assert {"ro", "nosuid", "nodev"} <= set(options.split(","))


def test_fstab_line(private, dataset, mountpoint):
    private.fstab.write_text(
        f"{dataset} {mountpoint} ddpfs noauto,nofail,_netdev,x-systemd.requires=network.target,uid=65534,gid=65534,"
        f"umask=0027,allow_other,rank=1,world=2 0 0\n")
    done = private.run(f"""
        mount {mountpoint}
        stat -c '%u %g %a' {mountpoint} "$(ls -d {mountpoint}/* | head -1)"
        $nobody ls {mountpoint} | wc -l
        mount {mountpoint} 2>&1 || echo "again: $?"
        umount {mountpoint}
        """)
    lines = done.stdout.splitlines()
    assert lines[0] == "65534 65534 750" and lines[1] == "65534 65534 640" and lines[2] == "50"
    assert "already" in lines[3] and lines[-1] == "again: 32"


def test_mount_a_mounts_once(private, dataset, mountpoint):
    private.fstab.write_text(f"{dataset} {mountpoint} ddpfs defaults,view=all 0 0\n")
    done = private.run(f"mount -a -t ddpfs; mount -a -t ddpfs; grep -c {mountpoint} /proc/mounts; umount {mountpoint}")
    assert done.stdout == "1\n"


def test_fstab_given_by_name(private, dataset, mountpoint, scratch):
    (scratch / "my.fstab").write_text(f"{dataset}\t{mountpoint}\tddpfs\tro,noauto,view=all,layout=flat\t0 0\n")
    done = private.run(f"mount -T my.fstab {mountpoint}; ls {mountpoint} | wc -l; umount {mountpoint}")
    assert done.stdout == "100\n"


def test_fstab_with_blanks_in_names(private, pack, tree, scratch):
    dataset = pack(tree[0])
    spaced = scratch / "my data, set"
    dataset.rename(spaced)
    (scratch / "my mnt").mkdir()
    escape = lambda path: str(path).replace(" ", "\\040")
    private.fstab.write_text(f"{escape(spaced)} {escape(scratch / 'my mnt')} ddpfs view=all 0 0\n")
    done = private.run("mount \"$PWD/my mnt\"; find 'my mnt' -type f | wc -l; $ddpfs ls; umount \"$PWD/my mnt\"")
    assert done.stdout.startswith("100\n") and "my mnt" in done.stdout


def test_user_mounts_from_fstab(private, dataset):
    mountpoint = private.directory_of_nobody("nb")
    private.fstab.write_text(f"{dataset} {mountpoint} ddpfs noauto,user,rank=0,world=2 0 0\n")
    done = private.run(f"""
        $nobody mount {mountpoint}
        grep {mountpoint} /proc/mounts
        $nobody sh -c 'ls {mountpoint} | wc -l'
        $nobody $ddpfs umount {mountpoint}
        """)
    lines = done.stdout.splitlines()
    assert "user_id=65534" in lines[0] and {"noexec", "nosuid", "nodev"} <= set(lines[0].split()[3].split(","))
    assert lines[1] == "50"


def test_mount_tells_the_reason_and_fails_with_32(private, dataset, mountpoint):
    done = private.run(f"mount -t ddpfs -o rank=0,world=2 {dataset}-none {mountpoint}", check=False)
    assert done.returncode == 32
    assert "mount.ddpfs: dataset" in done.stderr and "does not exist" in done.stderr


def test_neither_rank_nor_all(private, dataset, mountpoint):
    done = private.run(f"mount -t ddpfs {dataset} {mountpoint}", check=False)
    assert done.returncode == 1
    assert "rank=R,world=W" in done.stderr and "view=all" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["a"], ["a", "b", "c"], ["a", "b", "-o", "nonsense"], ["-x", "a", "b"], ["--nonsense", "a", "b"],
                                       ["a", "b", "-o"], ["a", "b", "-N", "x", "-o", "view=all"]])
def test_wrong_usage_is_1(build_dir, arguments):
    done = helper(*arguments)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("mount.ddpfs: ")


def test_fake_checks_and_mounts_nothing(dataset, mountpoint):
    assert helper(dataset, mountpoint, "-f", "-o", "rw,view=all").returncode == 0
    assert helper(dataset, mountpoint, "-f", "-o", "rw").returncode == 1
    assert helper(f"{dataset}-none", mountpoint, "-f", "-o", "view=all").returncode == 32
    assert str(mountpoint) not in open("/proc/self/mountinfo").read()


def test_sloppy_skips_unknown_options(dataset, mountpoint):
    assert helper(dataset, mountpoint, "-f", "-o", "view=all,nonsense=1").returncode == 1
    assert helper(dataset, mountpoint, "-f", "-s", "-o", "view=all,nonsense=1").returncode == 0
    assert helper(dataset, mountpoint, "-f", "-o", "view=all,nonsense=1", "-sn").returncode == 0


def test_verbose(private, dataset, mountpoint):
    done = private.run(f"mount -v -t ddpfs -o view=all {dataset} {mountpoint}; umount {mountpoint}")
    assert f"{dataset} mounted on {mountpoint}" in done.stdout


def test_remount_says_what_to_do(private, dataset, mountpoint):
    done = private.run(f"""
        mount -t ddpfs -o view=all {dataset} {mountpoint}
        mount -t ddpfs -o remount,view=all {dataset} {mountpoint} 2>&1 || true
        umount {mountpoint}""")
    assert "cannot be remounted" in done.stdout


def test_called_as_mount_fuse_does(dataset, mountpoint):
    """mount.fuse(8), asked for the type fuse.ddpfs, runs `ddpfs SOURCE MNT -o OPTIONS`."""
    ddpfs = tools.tool("ddpfs")
    try:
        tools.run([ddpfs, dataset, mountpoint, "-o", "rw,dev,suid,view=all"])
        assert mounts.is_mounted(mountpoint)
        done = tools.run([ddpfs, dataset, mountpoint, "-o",
                          "rw,nosuid,nodev,relatime,user_id=0,group_id=0,default_permissions,max_read=1048576,remount"], check=False)
        assert done.returncode == 1 and done.stderr.startswith("mount.ddpfs: a ddpfs mount cannot be remounted")
    finally:
        if mounts.is_mounted(mountpoint):
            tools.ddpfs("umount", mountpoint)


def test_mount_fuse_itself(private, dataset, mountpoint):
    if not os.path.exists("/sbin/mount.fuse3"):
        pytest.skip("no mount.fuse3 here")
    shutil.copy("/sbin/mount.fuse3", private.sbin / "mount.fuse")
    (private.sbin / "ddpfs").symlink_to(tools.tool("ddpfs"))  # mount.fuse looks along a PATH of its own
    done = private.run(f"""
        mount -t fuse.ddpfs -o view=all {dataset} {mountpoint}
        find {mountpoint} -type f | wc -l
        mount -o remount,noatime {mountpoint} 2>&1 || echo "remount: $?"
        umount {mountpoint}""")
    lines = done.stdout.splitlines()
    assert lines[0] == "100" and "cannot be remounted" in lines[1] and lines[-1] == "remount: 1"


def test_help_and_version(build_dir):
    done = helper("--help")
    assert done.returncode == 0 and "-o OPTIONS" in done.stdout and "fill_class" in done.stdout and not done.stderr
    assert helper("-V").stdout.startswith("mount.ddpfs (ddpfs) ")


def test_allow_other_is_blamed_only_where_it_is_why(private, dataset, scratch):
    """What fusermount3 says is shown; the advice about user_allow_other comes only with its own words about it."""
    (scratch / "bin").mkdir()
    (scratch / "bin/fusermount3").write_text("#!/bin/sh\necho 'fusermount3: too many mounts' >&2\nexit 1\n")
    (scratch / "bin/fusermount3").chmod(0o755)
    (scratch / "fuse.conf").write_text("mount_max = 1000\n")
    mountpoint = private.directory_of_nobody("nb")
    mount = f"$nobody $ddpfs mount -o allow_other,view=all {dataset} {mountpoint} 2>&1 || echo code $?"
    done = private.run(f"""
        mount --bind {scratch}/fuse.conf /etc/fuse.conf
        {mount}
        export PATH={scratch}/bin:$PATH
        {mount}
        """)
    forbidden, code, full, code_again = done.stdout.splitlines()
    assert "/etc/fuse.conf" in forbidden and "add that line as root" in forbidden
    assert "too many mounts" in full and "user_allow_other" not in full and "add that line" not in full
    assert code == code_again == "code 1"


def test_a_user_without_fusermount3_is_told_to_install_it(private, dataset):
    """The sentence of MESSAGES.md; root mounts without the program."""
    mountpoint = private.directory_of_nobody("nb")
    mount = f"env PATH=/nowhere $ddpfs mount -q -o view=all {dataset} {mountpoint} 2>&1 || echo code $?"
    said, code = private.run(f"chmod -R a+rX {dataset}; $nobody {mount}; {mount}; umount {mountpoint}").stdout.splitlines()
    sentence = "cannot run fusermount3 (No such file or directory): install the package fuse3, or mount as root"
    assert said.endswith(f": {sentence}") and code == "code 1"
    assert sentence.replace("No such file or directory", "…") in (tools.ROOT / "tools/MESSAGES.md").read_text().splitlines()
