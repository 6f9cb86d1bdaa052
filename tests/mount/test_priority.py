# SPDX-License-Identifier: Apache-2.0
"""The server's threads run before those of the trainer."""

import os
from pathlib import Path

import pytest

from helpers import tools
from helpers.waiting import wait_until
from mount import control

RAISED, SYS_NICE = -10, 1 << 23
SEARCH = {"recognise", "seed-search"}
SEEN = SEARCH | {"ddpfs-server", "engine", "deliver", "lister", "watcher", "fuse-0"}


@pytest.fixture(autouse=True)
def may_raise():
    status = Path("/proc/self/status").read_text()
    if not int(status.split("CapEff:")[1].split()[0], 16) & SYS_NICE:
        pytest.skip("CAP_SYS_NICE is missing")


def nices(pid):
    """The nice values of a process's threads, by name."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        text = (task / "stat").read_text()
        name, rest = text[text.index("(") + 1 :].rsplit(")", 1)
        found.setdefault(name, set()).add(int(rest.split()[16]))
    return found


def server_nices(m):
    return wait_until(lambda: (now := nices(m.server_pid())).keys() >= SEEN and now)


def session_nice(pid):
    """None where the kernel has no autogroups, or cgroups in their place."""
    path = Path(f"/proc/{pid}/autogroup")
    text = path.read_text() if path.exists() else ""
    return int(text.split()[-1]) if text else None


@pytest.mark.parametrize("options, session", [("", RAISED), (",seed_search=1", 0)])
def test_all_threads_but_those_that_search_are_raised(mount, pack, tree, options, session):
    m = mount(pack(tree[0]), "layout=tree,view=all" + options, within=("setsid",))
    assert all((m.path / path).read_bytes() == data for path, data in tree[1].items())
    first = m.server_pid()
    for _ in range(2):  # of a successor, too
        for name, values in server_nices(m).items():
            assert values == ({0} if name in SEARCH else {RAISED}), name
        assert nices(m.process.pid) == {"ddpfs": {RAISED}}
        assert session_nice(m.server_pid()) in (session, None)
        if m.server_pid() == first:
            os.kill(first, 9)
            wait_until(lambda: m.server_pid() != first)


def test_tables_of_torch_for_the_tier_are_made_at_the_usual_priority(mount, pack, scratch):
    tier, large = scratch / "tier", scratch / "large"
    tier.mkdir()
    large.mkdir()
    for number in range(40):  # more than the tier holds
        (large / f"{number:03}").write_bytes(os.urandom(2 << 20))
    m = mount(pack(large), f"rank=1,world=4,order=torch,tier={tier},tier_size=64M")
    wait_until(lambda: nices(m.server_pid()).get("tier-uses") == {0}, "the thread that makes the tables")
    wait_until(lambda: control.stats(m)["tier_told_epochs"] == 33, "the tables")
    m.unmount()


def test_a_session_of_somebody_else_keeps_its_priority(mount, pack, tree):
    m = mount(pack(tree[0]), "layout=tree,view=all")
    assert server_nices(m)["engine"] == {RAISED}
    assert os.getsid(m.process.pid) != m.process.pid
    assert session_nice(m.process.pid) == session_nice("self")


def test_who_chose_a_nice_value_gets_it(mount, pack, tree):
    m = mount(pack(tree[0]), "layout=tree,view=all", within=("nice", "-n", "5"))
    assert set.union(*server_nices(m).values()) == {5}


def test_what_a_mount_starts_beside_servers_is_not_raised(pack, tree, tmp_path):
    """A trainer under exec."""
    place = tmp_path / "mnt"
    place.mkdir()
    shown = tools.ddpfs("exec", "-q", "-o", "view=all", pack(tree[0]), place, "--", "nice")
    assert int(shown.stdout) == os.getpriority(os.PRIO_PROCESS, 0)
