# SPDX-License-Identifier: Apache-2.0
"""One rank of a job that a test drives line by line, without torch: what a trainer does to its files, no more.

It prints the files of a batch once it has read them, and goes on when told `go`; told `save K`, it writes the checkpoint of
K batches of this run: the state beside the (empty) model, both or neither, by one rename."""

import json
import os
import subprocess
import sys

BATCH = 3


def save(mnt, ckpt, batches, epoch):
    place = f"{ckpt}.{batches}.{os.getpid()}"
    os.mkdir(place)
    subprocess.run([os.environ["DDPFS_PROGRAM"], "ctl", mnt, "state", f"--turns={batches * BATCH}", f"--epoch={epoch}",
                    "-O", f"{place}/data.json"], check=True)
    link = f"{place}.link"
    os.symlink(place, link)
    os.rename(link, ckpt)


def wait_for_go(mnt, ckpt, epoch):
    """False when nobody is there to say it."""
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "go":
            return True
        save(mnt, ckpt, int(rest[0]), epoch)
        print(json.dumps("saved"), flush=True)
    return False


def main(ckpt):
    mnt = os.environ["DDPFS_MOUNT"]
    names = sorted(os.listdir(mnt))
    epoch = int(names[0][:4])
    for at in range(0, len(names), BATCH):
        batch = []
        for name in names[at:at + BATCH]:
            path = os.path.join(mnt, name)
            with open(path, "rb") as f:
                f.read()
            batch.append(os.getxattr(path, "user.ddpfs.path").decode())
        print(json.dumps([epoch, batch]), flush=True)
        if not wait_for_go(mnt, ckpt, epoch):
            return
    print(json.dumps("end"), flush=True)
    wait_for_go(mnt, ckpt, epoch)


if __name__ == "__main__":
    main(*sys.argv[1:])
