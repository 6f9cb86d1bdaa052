# SPDX-License-Identifier: Apache-2.0
"""Announced orders of users who can read the mount, but cannot reach its control socket: another user than the one who
mounted, and a container that sees the mount alone."""

import ctypes
import errno
import fcntl
import json
import os
import random
import sys

import pytest

from helpers import tools
from helpers.datasets import content
from helpers.other_user import call_as
from helpers.waiting import wait_until
from mount.control import ask, stats

sys.path.insert(0, str(tools.ROOT / "gpu_stage" / "python"))
import ddpfs  # noqa: E402

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another user reads root's mount")
COUNT, SIZE = 2000, 9000
MOUNT = "view=all,allow_other,memory=256M"  # the window holds all files: none needs to be read while somebody opens them
GUEST, OTHER = 65534, 65533
CLONE_NEWNS = 0x20000
BYTES = 16376  # BASE_ANNOUNCE_BYTES
IOCTL = 3 << 30 | BYTES << 16 | 0xdd << 8 | 1


@pytest.fixture(scope="module")
def packed(build_dir, tmp_path_factory):
    """(dataset, the paths of its samples in order)"""
    base = tmp_path_factory.mktemp("guests")
    paths = [f"c{i % 20}/{i:05d}.jpg" for i in range(COUNT)]
    for path in paths:
        (base / "source" / path).parent.mkdir(parents=True, exist_ok=True)
        (base / "source" / path).write_bytes(content(path, SIZE))
    tools.mkshard("pack", base / "source", base / "dataset")
    return base / "dataset", sorted(paths)


@pytest.fixture
def mounted(packed, mount, scratch):
    os.chmod(scratch, 0o755)
    return mount(packed[0], MOUNT)


def settled(m):
    return wait_until(lambda: (now := stats(m))["idle"] and not now["recognise_queue"] and now, "an idle engine", pause_s=0.002)


def shuffled(paths, seed):
    order = list(paths)
    random.Random(seed).shuffle(order)
    return order


def read_all(m, order, uid):
    """Another user reads the files in this order.  Returns how many opens missed."""
    before = settled(m)

    def read():
        for path in order:
            with open(m.path / path, "rb") as file:
                assert len(file.read()) == SIZE

    call_as(read, uid)
    after = settled(m)
    return after["misses"] - before["misses"]


def lists_of(m):
    return {one["list"]: one["entries"] for one in stats(m)["announced"]}


def ask_at(directory, request, data=b""):
    """Asks by ioctl(2) as the protocol says, without ddpfs's client."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        line = request if isinstance(request, bytes) else json.dumps(request).encode() + b"\n"
        buffer = bytearray(line + data)
        buffer.extend(bytes(BYTES - len(buffer)))
        fcntl.ioctl(fd, IOCTL, buffer)
        return json.loads(buffer[:buffer.index(b"\n")])
    finally:
        os.close(fd)


def follow_by_python(place, order):
    assert ddpfs.Mount(place).follow(order) == len(order)


def follow_by_indices(place, order):
    number = {path: i for i, path in enumerate(sorted(order))}
    follow_by_python(place, [number[path] for path in order])


def follow_by_command(place, order):
    done = tools.run([tools.tool("ddpfs"), "ctl", place, "follow", "-"], input="\n".join(order))
    assert f"{len(order)} entries announced" in done.stdout


@pytest.mark.parametrize("follow", [follow_by_python, follow_by_indices, follow_by_command])
def test_what_another_user_announces_is_in_memory_before_he_opens_it(mounted, packed, follow):
    order = shuffled(packed[1], 1)
    call_as(lambda: follow(mounted.path, order))
    assert lists_of(mounted) == {f"{GUEST} default": COUNT}
    assert read_all(mounted, order, GUEST) < COUNT / 100
    assert stats(mounted)["order_source"] == "announced"


def test_users_have_lists_of_their_own(mounted, packed):
    paths = packed[1]
    ddpfs.Mount(mounted.path).follow(paths[:30])  # root, over the socket
    call_as(lambda: ddpfs.Mount(mounted.path).follow(paths[:20]), GUEST)
    call_as(lambda: ddpfs.Mount(mounted.path).follow(paths[:10]), OTHER)
    assert lists_of(mounted) == {"default": 30, f"{GUEST} default": 20, f"{OTHER} default": 10}
    call_as(lambda: ddpfs.Mount(mounted.path).unfollow(), OTHER)
    call_as(lambda: ddpfs.Mount(mounted.path).follow(paths[:5], append=True), GUEST)
    assert lists_of(mounted) == {"default": 30, f"{GUEST} default": 25}


def test_no_name_makes_a_list_that_of_a_guest(mounted, packed):
    """Names may begin as the user IDs of guests: those who use the socket name lists after ranks."""
    paths = packed[1]
    names = [f"{GUEST}{mark}{name}" for mark in ":.-_/" for name in ("train", "default")]
    m = ddpfs.Mount(mounted.path)
    for name in names:
        m.follow(paths[:30], list=name)
    mine = dict.fromkeys(names, 30)

    def guest(what):
        return call_as(lambda: what(ddpfs.Mount(mounted.path)), GUEST)

    assert lists_of(mounted) == mine
    assert guest(lambda m: m.follow(paths[:7], list="train")) == 7
    assert guest(lambda m: m.follow(paths[:7], list=names[0])) == 7
    assert lists_of(mounted) == {**mine, f"{GUEST} train": 7, f"{GUEST} {names[0]}": 7}
    guest(lambda m: m.unfollow("train"))
    guest(lambda m: m.unfollow("default"))
    m.unfollow(names[0])
    assert lists_of(mounted) == {**dict.fromkeys(names[1:], 30), f"{GUEST} {names[0]}": 7}
    for who in (lambda what: what(m), guest):
        with pytest.raises(ValueError, match="no spaces"):
            who(lambda m: m.follow(paths[:7], list=f"{GUEST} train"))
    guest(lambda m: [m.follow([1], list=f"list{i}") for i in range(31)])  # what others named is not counted as his


def test_a_guests_table_of_files_is_his_own(mounted, packed):
    paths = packed[1]

    def guest():
        m = ddpfs.Mount(mounted.path)
        files = m.files(list(reversed(paths)))
        assert m.follow(range(COUNT), files=files) == COUNT
        return files.name

    name = call_as(guest, GUEST)
    request = {"cmd": "follow", "listing": "table", "table": name, "form": "u32", "bytes": 4}
    assert ask_at(mounted.path, request, bytes(4))["ok"] is False, "root asks as a guest, too, and has no such table"
    answer = call_as(lambda: ask_at(mounted.path, request, bytes(4)), GUEST)
    assert answer["ok"] and answer["entries"] == 1


def test_a_guests_tables_take_no_place_of_others(mounted, packed):
    paths = packed[1]

    def is_there(table):
        try:
            ddpfs.Mount(mounted.path)._follower().announce({"listing": "table", "table": table, "form": "u32"}, bytes(4))
        except OSError as error:
            assert error.errno == errno.ESTALE
            return False
        return True

    def make(n):
        return [ddpfs.Mount(mounted.path).files(paths[:10]).name for _ in range(n)]

    of_root = make(1)[0]
    of_other = call_as(lambda: make(1), OTHER)[0]
    of_guest = call_as(lambda: make(40), GUEST)
    assert is_there(of_root)
    assert call_as(lambda: is_there(of_other), OTHER)
    assert call_as(lambda: [is_there(table) for table in of_guest], GUEST) == [False] * 36 + [True] * 4


@pytest.mark.parametrize("lost_at", [0, 1, 3])
def test_a_table_that_is_lost_between_two_pieces_is_announced_again(mounted, packed, lost_at):
    """As when the server was replaced.  What was taken before is not announced twice."""
    def guest():
        m = ddpfs.Mount(mounted.path)
        files = m.files(packed[1])
        root = m._follower()._root_instead()
        ask, pieces = root.ask, []

        def lose(request, data=b""):
            if request.get("listing") == "table":
                pieces.append(request)
                if len(pieces) == lost_at + 1:
                    ask({"how": "table-end", "table": files.name})
            return ask(request, data)

        root.ask = lose
        assert m.follow([*range(COUNT)] * 8, files=files, append=True) == 8 * COUNT
        assert len(pieces) > 4
        return True

    assert call_as(guest)
    assert lists_of(mounted) == {f"{GUEST} default": 8 * COUNT}


def test_nothing_is_announced_as_over_the_socket(mounted):
    def refusal(announced):
        with pytest.raises(ValueError) as caught:
            ddpfs.Mount(mounted.path)._follower().announce({"form": "u64", **announced}, b"")
        return str(caught.value)

    for announced in ({"how": "replace"}, {"how": "learn", "size": COUNT}, {"how": "table", "table": "x", "form": "text"}):
        assert refusal(announced) == call_as(lambda: refusal(announced))


def test_a_socket_that_does_not_tell_its_mount_is_asked(mounted, packed):
    """That of an older server."""
    m = ddpfs.Mount(mounted.path)
    talk = m._follower()._talk
    m._follower()._talk = lambda *asked: {k: v for k, v in talk(*asked).items() if k != "dev"}
    assert m.follow(packed[1]) == COUNT
    assert lists_of(mounted) == {"default": COUNT}


@pytest.mark.parametrize("follow", ["python", "command"])
def test_pieces_of_which_nothing_is_taken_spoil_no_list(mounted, packed, follow):
    strangers = [f"elsewhere/{i:040d}" for i in range(1000)]  # several pieces
    order = [*strangers, *packed[1], *strangers]

    def guest():
        if follow == "python":
            return ddpfs.Mount(mounted.path).follow(order, skip_unknown=True)
        tools.run([tools.tool("ddpfs"), "ctl", mounted.path, "follow", "--skip-unknown", "-"], input="\n".join(order))
        return COUNT

    call_as(lambda: ddpfs.Mount(mounted.path).follow([7]))
    assert call_as(guest) == COUNT
    assert lists_of(mounted) == {f"{GUEST} default": COUNT}, "it begins anew"
    with pytest.raises(ValueError, match="none of the 1000 entries"):
        call_as(lambda: ddpfs.Mount(mounted.path).follow(strangers, skip_unknown=True))


def test_many_threads_announce_side_by_side(mounted, packed):
    """More requests wait than the server takes of one user: the client asks again."""
    from concurrent.futures import ThreadPoolExecutor

    def guest():
        with ThreadPoolExecutor(24) as pool:
            return sum(pool.map(lambda i: ddpfs.Mount(mounted.path).follow(range(COUNT), list=f"list{i}"), range(24)))

    assert call_as(guest) == 24 * COUNT
    assert len(lists_of(mounted)) == 24


def test_a_socket_of_another_mount_is_not_asked(mounted, packed, mount):
    """In a container the socket's path can be that of a server of the container."""
    other = mount(packed[0], "view=all")
    m = ddpfs.Mount(mounted.path)
    m._follower()._find_socket = ddpfs.Mount(other.path)._control_socket
    assert m.follow(packed[1]) == COUNT
    assert lists_of(mounted) == {"0 default": COUNT} and lists_of(other) == {}


@pytest.mark.parametrize("request_", [
    {"cmd": "info"}, {"cmd": "stat"}, {"cmd": "history"}, {"cmd": "epoch", "set": 3}, {"cmd": "state"}, {"cmd": "reset"},
    {"cmd": "unmount", "lazy": True}, {"cmd": "neighbour", "servers": 9, "mounts": 9, "claims": []},
    {"cmd": "restart", "program": "/bin/true"}, {"cmd": "consumed", "epoch": 1, "steps": 1}], ids=lambda r: r["cmd"])
def test_a_guest_may_announce_and_nothing_else(mounted, request_):
    def epoch():
        now = ask(mounted, "epoch")
        return now["epoch"], now["advance"]

    before = epoch()
    answer = call_as(lambda: ask_at(mounted.path, request_))
    assert answer["ok"] is False and "only announcements" in answer["error"]
    assert epoch() == before


FOLLOW = {"cmd": "follow", "form": "u32", "bytes": 8}
MALFORMED = {
    "no line": (b"x" * BYTES, b"", "one line of JSON"),
    "no JSON": (b"{\n", b"", "one line of JSON"),
    "deep": (b"[" * 10000 + b"\n", b"", "one line of JSON"),
    "unknown command": ({"cmd": "open"}, b"", "unknown command"),
    "unknown key": ({**FOLLOW, "mode": 1}, b"", "a key that this command does not know"),
    "more bytes than came": ({**FOLLOW, "bytes": BYTES}, b"", "shorter than"),
    "far more bytes": ({**FOLLOW, "bytes": 1 << 60}, b"", "shorter than"),
    "no entry": ({**FOLLOW, "bytes": 0}, b"", "at least one entry"),
    "half an entry": ({**FOLLOW, "bytes": 7}, b"", "no multiple"),
    "no form": ({**FOLLOW, "form": "u16"}, b"", '"form" must be'),
    "a long name": ({**FOLLOW, "list": "x" * 53}, bytes(8), "1 to 52 printable"),
    "a place": ({**FOLLOW, "from": 100}, b"\0\0\0\0\xff\xff\xff\xff", "index 4294967295 at place 101 is out of range"),
    "a negative place": ({**FOLLOW, "from": -1}, bytes(8), '"from" must be a whole number'),
    "a place that is too far": ({**FOLLOW, "from": (1 << 62) + 1}, bytes(8), '"from" must be a whole number'),
    "a place in words": ({**FOLLOW, "from": "3"}, bytes(8), '"from" must be a whole number'),
    "an unknown path": ({**FOLLOW, "form": "text", "bytes": 5}, b"nope\0", "no such file in the mount"),
    "no table": ({**FOLLOW, "listing": "table", "table": "list-0-0-0-0"}, bytes(8), "no table of files 'list-0-0-0-0'"),
    "drawn indices": ({**FOLLOW, "how": "learn", "form": "u64", "size": 1}, b"\1" * 8, "out of range"),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_request_gets_a_sentence(mounted, what):
    request, data, said = MALFORMED[what]
    answer = call_as(lambda: ask_at(mounted.path, request, data))
    assert answer["ok"] is False and said in answer["error"]
    assert lists_of(mounted) == {}


def test_other_ioctls_and_other_places_are_refused(mounted, packed):
    def error_of(path, number):
        fd = os.open(mounted.path / path, os.O_RDONLY)
        with pytest.raises(OSError) as caught:
            fcntl.ioctl(fd, number, bytearray(BYTES))
        os.close(fd)
        return caught.value.errno

    def guest():
        small = 3 << 30 | 8 << 16 | 0xdd << 8 | 1
        return error_of(packed[1][0], IOCTL), error_of("", IOCTL + 1), error_of("", small), ask_at(mounted.path / "c0", FOLLOW, bytes(8))

    at_file, other, small, below = call_as(guest)
    assert (at_file, other, small) == (errno.ENOTTY,) * 3
    assert below["ok"] is False and "announce at the root of the mount" in below["error"]


def test_a_mount_of_several_ranks_takes_no_announcement(packed, mount, scratch):
    os.chmod(scratch, 0o755)
    m = mount(packed[0], "rank=0-1,world=2,allow_other")
    for place in ("", "rank0"):
        answer = call_as(lambda: ask_at(m.path / place, FOLLOW, bytes(8)))
        assert answer["ok"] is False and "announce" in answer["error"]


def test_without_allow_other_nobody_else_announces(packed, mount, scratch):
    os.chmod(scratch, 0o755)
    m = mount(packed[0], "view=all")
    with pytest.raises(PermissionError):
        call_as(lambda: ddpfs.Mount(m.path).follow(packed[1]))


def test_a_guest_cannot_take_all_lists(mounted):
    def announce(n):
        m = ddpfs.Mount(mounted.path)
        for i in range(n):
            try:
                m.follow([1], list=f"list{i}")
            except OSError as error:
                assert error.errno == errno.E2BIG
                return i
        return n

    assert call_as(lambda: announce(64), GUEST) == 32
    assert call_as(lambda: announce(64), OTHER) == 16, "all guests together have 48"
    assert announce(16) == 16, "root's own"
    assert len(lists_of(mounted)) == 64
    assert call_as(lambda: ddpfs.Mount(mounted.path).follow([1, 2], list="list3"), GUEST) == 2, "what he has he may replace"


def test_a_guest_cannot_take_all_memory(mounted):
    """64 MiB are for orders: 32 of one user, 48 of all guests."""
    one = b"\0\0\0\0" * 1000000  # 4 bytes an entry, in blocks of 256 KiB

    def announce():
        m = ddpfs.Mount(mounted.path)
        with pytest.raises(OSError) as caught:
            for _ in range(20):
                m.follow(memoryview(one).cast("I"), append=True)
        assert caught.value.errno == errno.ENOSPC and "half of the memory" in caught.value.strerror

    def mebibytes():
        return stats(mounted)["order_memory_bytes"] / (1 << 20)

    call_as(announce, GUEST)
    assert 30 <= mebibytes() <= 36, "with what finds the entries that come next"
    call_as(announce, OTHER)
    call_as(announce, 65532)
    assert 44 <= mebibytes() <= 54
    assert ddpfs.Mount(mounted.path).follow(memoryview(one * 2).cast("I")) == 2000000, "root's own: 8 MB"
    assert 52 <= mebibytes() <= 64


def test_a_successor_goes_on_with_a_guests_list(mounted, packed):
    order = shuffled(packed[1], 2)
    call_as(lambda: ddpfs.Mount(mounted.path).follow(order[:1000]))
    server = mounted.server_pid()
    os.kill(server, 9)
    wait_until(lambda: mounted.server_pid() != server)
    assert lists_of(mounted) == {f"{GUEST} default": 1000}
    call_as(lambda: ddpfs.Mount(mounted.path).follow(order[1000:], append=True))
    assert lists_of(mounted) == {f"{GUEST} default": COUNT}
    assert read_all(mounted, order, GUEST) < COUNT / 100


CONTAINER = """
    mount --make-rprivate /
    mount -t tmpfs none /run
    mount --bind $0 $1
    umount -l $0
    """


@pytest.mark.parametrize("follow", [follow_by_python, follow_by_command])
@pytest.mark.parametrize("uid", [0, GUEST])
def test_a_container_that_sees_the_mount_alone_announces(mounted, packed, scratch, follow, uid):
    """Its own mount namespace, the mount at another path, and /run is not the host's."""
    order = shuffled(packed[1], 3)
    place = scratch / "data"
    place.mkdir()

    def contain():
        assert ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0
        tools.run(["sh", "-ec", CONTAINER, mounted.path, place])

    call_as(lambda: follow(place, [f"{place}/{path}" for path in order]), uid, before=contain)
    assert lists_of(mounted) == {f"{uid} default": COUNT}
    assert read_all(mounted, order, GUEST) < COUNT / 100
