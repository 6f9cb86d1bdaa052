# SPDX-License-Identifier: Apache-2.0
"""What a user does with installed programs, as a script.  It calls a shell function upgrade(), which installs them anew.

`sh -e` goes on after "! COMMAND", whatever that gives: so what must fail stands behind `never`."""

NEVER = r"""
never() { if "$@"; then echo "not expected: $*" >&2; exit 1; fi; }
no_server() { # the last one ends a moment after its mount
    for i in $(seq 300); do pgrep -x ddpfs >/dev/null || break; sleep 0.1; done
    never pgrep -x ddpfs
}
"""
USE = NEVER + r"""
mkdir /tmp/source /tmp/mnt
for i in 1 2 3 4 5 6 7 8; do echo "sample $i" >/tmp/source/$i; done
mkshard pack /tmp/source /tmp/dataset
ddpfs mount -o view=all /tmp/dataset /tmp/mnt
cmp /tmp/source/3 /tmp/mnt/3

upgrade
cmp /tmp/source/4 /tmp/mnt/4
ddpfs restart /tmp/mnt
cmp /tmp/source/5 /tmp/mnt/5
ddpfs umount /tmp/mnt
mount -t ddpfs -o view=all /tmp/dataset /tmp/mnt
cmp /tmp/source/6 /tmp/mnt/6
umount /tmp/mnt
no_server

python3 -B -c '
import ddpfs
print("samples of the module:", sum(len(batch) for batch in ddpfs.Stage("/tmp/dataset", 2)))
print("module:", ddpfs.__file__)'
"""
DEB_USED = r"""
ldconfig -p | grep libddpfs_stage.so.0
"""
DEB_GONE = r"""
ldconfig -p >/tmp/libraries
dpkg -l >/tmp/packages
never grep libddpfs /tmp/libraries
never grep ddpfs /tmp/packages
"""
