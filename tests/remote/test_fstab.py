# SPDX-License-Identifier: Apache-2.0
"""Lines of /etc/fstab with a dataset in a store.  mount(8) runs as at boot: no variables of AWS, and no HOME."""

import os

import pytest

from helpers import datasets, tools
from helpers.private import Private

KEYS = "aws_access_key_id = AKFSTAB\naws_secret_access_key = x\n"


@pytest.fixture
def private(build_dir, scratch):
    return Private(scratch)


@pytest.fixture
def bucket(build_dir, scratch, http_store):
    """s3://bucket/train of a store that takes requests of AKFSTAB only; root's home directory is scratch/home."""
    datasets.write_tree(scratch / "source", classes=2, per_class=30)
    (http_store.root / "bucket").mkdir()
    tools.mkshard("pack", scratch / "source", http_store.root / "bucket" / "train")
    http_store.set(key="AKFSTAB")
    (scratch / "mnt").mkdir()
    (scratch / "home/.aws").mkdir(parents=True)
    (scratch / "passwd").write_text(f"root:x:0:0:root:{scratch}/home:/bin/sh\n")
    return http_store


def mount_all(private, *lines, environment="", check=True):
    """Runs `mount -a -T FILE`, twice, and compares the files of scratch/mnt with those of scratch/source."""
    place = private.directory
    private.fstab.write_text("".join(f"{line}\n" for line in lines))
    boot = f"env -i PATH={os.environ['PATH']} DDPFS_INDEX_DIR={place}/indexes AWS_EC2_METADATA_DISABLED=true {environment}"
    return private.run(f"""
        mount --bind {place}/passwd /etc/passwd
        {boot} mount -a -T {place}/fstab
        {boot} mount -a -T {place}/fstab
        grep -c ' {place}/mnt ' /proc/self/mounts
        diff -r {place}/source {place}/mnt && echo same
        umount {place}/mnt
        """, check=check)


def test_keys_and_settings_in_the_home_directory_of_root(private, bucket, scratch):
    (scratch / "home/.aws/credentials").write_text(f"[default]\n{KEYS}")
    (scratch / "home/.aws/config").write_text(f"[default]\nendpoint_url = {bucket.url}\nregion = eu-west-1\n")
    done = mount_all(private, f"s3://bucket/train {scratch}/mnt ddpfs _netdev,nofail,view=all,x-systemd.automount 0 0")
    assert done.stdout == "1\nsame\n"


def test_a_profile_and_an_endpoint_in_the_line(private, bucket, scratch):
    (scratch / "home/.aws/credentials").write_text(f"[other]\naws_access_key_id=NO\naws_secret_access_key=x\n[train]\n{KEYS}")
    done = mount_all(private, f"s3://bucket/train {scratch}/mnt ddpfs view=all,s3_profile=train,s3_endpoint={bucket.url} 0 0")
    assert done.stdout == "1\nsame\n"


def test_a_file_of_credentials_counts_before_keys_of_the_environment(private, bucket, scratch):
    (scratch / "keys").write_text(f"[default]\n{KEYS}")
    done = mount_all(private, f"s3://bucket/train {scratch}/mnt ddpfs view=all,s3_credentials={scratch}/keys,"
                              f"s3_region=eu-west-1,s3_endpoint={bucket.url},s3_addressing=path 0 0",
                     environment="AWS_ACCESS_KEY_ID=NO AWS_SECRET_ACCESS_KEY=x AWS_ENDPOINT_URL_S3=http://127.0.0.1:1")
    assert done.stdout == "1\nsame\n"


def test_a_public_bucket_needs_no_keys(private, bucket, scratch):
    bucket.set()
    done = mount_all(private, f"s3://bucket/train {scratch}/mnt ddpfs view=all,s3_anonymous,s3_endpoint={bucket.url} 0 0")
    assert done.stdout == "1\nsame\n"


def test_a_web_server(private, bucket, scratch):
    bucket.set()
    done = mount_all(private, f"{bucket.url}/bucket/train {scratch}/mnt ddpfs _netdev,nofail,view=all 0 0")
    assert done.stdout == "1\nsame\n"


def test_a_server_that_is_replaced_keeps_what_the_line_says(private, bucket, scratch):
    (scratch / "keys").write_text(f"[default]\n{KEYS}")
    private.fstab.write_text(f"s3://bucket/train {scratch}/mnt ddpfs view=all,s3_credentials={scratch}/keys,"
                             f"s3_endpoint={bucket.url} 0 0\n")
    done = private.run(f"""
        DDPFS_INDEX_DIR={scratch}/indexes mount {scratch}/mnt
        $ddpfs restart {scratch}/mnt >/dev/null
        kill -9 $($ddpfs stat --json {scratch}/mnt | grep -o '"server_pid": *[0-9]*' | grep -o '[0-9]*$')
        diff -r {scratch}/source {scratch}/mnt && echo same
        umount {scratch}/mnt
        """)
    assert done.stdout.endswith("same\n")


@pytest.mark.parametrize("options, said", [
    ("s3_profile=train", "profile 'train': neither ~/.aws/credentials nor ~/.aws/config has it (s3_profile)"),
    ("s3_credentials=/none", "profile 'default': neither /none nor ~/.aws/config has it (s3_credentials)"),
    ("s3_endpoint=h:9000", "begins with neither https:// nor http://"),
])
def test_a_wrong_option_is_one_sentence(options, said, private, bucket, scratch):
    done = mount_all(private, f"s3://bucket/train {scratch}/mnt ddpfs view=all,{options} 0 0", check=False)
    assert done.returncode != 0 and said in done.stderr
