# SPDX-License-Identifier: Apache-2.0
"""The Python package on top of libddpfs_stage: views without a copy, epochs, states, torch, mounted()."""

import errno
import gc
import os
import re
import signal
import subprocess
import sys
import threading

import pytest

np = pytest.importorskip("numpy", reason="numpy is not installed")

from helpers import datasets, mounts, seccomp, tools  # noqa: E402

sys.path.insert(0, str(tools.ROOT / "gpu_stage" / "python"))
import ddpfs  # noqa: E402


@pytest.fixture(autouse=True)
def library(build_dir, monkeypatch):
    monkeypatch.setenv("DDPFS_STAGE_LIB", str(build_dir / "gpu_stage" / "libddpfs_stage.so"))


@pytest.fixture
def packed(pack, tree):
    """(dataset, {path: bytes})"""
    root, files = tree
    return pack(root), files


def names_and_bytes(stage):
    return [(batch.path(i), bytes(batch[i])) for batch in stage for i in range(len(batch))]


def test_an_epoch_is_every_file_with_its_bytes(packed):
    dataset, files = packed
    with ddpfs.Stage(dataset, batch=7, memory="64M") as stage:
        assert len(stage) == -(-len(files) // 7)
        got = names_and_bytes(stage)
    assert len(got) == len(files)
    assert dict(got) == files


def test_threads_that_share_a_stage_open_it_once(packed):
    """Whoever comes first: each sample goes to one of them."""
    dataset, files = packed
    for _ in range(5):
        stage, together, seen = ddpfs.Stage(dataset, batch=3, memory="64M"), threading.Barrier(8), []

        def consume(stage=stage, together=together, seen=seen):
            together.wait()
            while (batch := stage.next()) is not None:
                seen.extend(batch.path(i) for i in range(len(batch)))

        threads = [threading.Thread(target=consume) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(seen) == sorted(files)


def test_a_byte_is_copied_once_whatever_is_handed_out(packed):
    """When its read has landed; not for a batch, and not in later epochs."""
    dataset, files = packed
    with ddpfs.Stage(dataset, batch=7, memory="64M") as stage:
        for _ in range(3):
            assert len(names_and_bytes(stage)) == len(files)
        stats = stage.stats()
    total = sum(map(len, files.values()))
    assert stats["copied_bytes"] == total and stats["bytes"] == 3 * total


def test_the_way_of_the_bytes_is_said(packed, caplog):
    with caplog.at_level("INFO", logger="ddpfs"), ddpfs.Stage(packed[0], batch=7, memory="64M") as stage:
        stage.next().release()
        assert re.fullmatch(r"read by (io_uring|pread threads) into host memory, where batches stay", stage.route)
    assert f"{packed[0]}: {stage.route}" in caplog.messages


def test_the_order_is_the_one_the_tool_prints(packed):
    dataset, _ = packed
    printed = tools.ddpfs("order", dataset, "-o", "order=full,seed=4,epoch=2,rank=1,world=3").stdout.splitlines()
    stage = ddpfs.Stage(dataset, batch=10, order="full", seed=4, epoch=2, rank=1, world=3, memory="64M")
    paths = [path for path, _ in names_and_bytes(stage)]
    assert paths and [line.split()[-1] for line in printed] == paths


def test_groups_are_those_of_the_tool_and_stay(packed):
    dataset, files = packed
    for rank in range(4):
        stage = ddpfs.Stage(dataset, batch=10, order="full", rank=rank, world=4, groups=4, redeal=2, memory="64M")
        orders = [[path for path, _ in names_and_bytes(stage)] for _ in range(4)]
        for epoch, paths in enumerate(orders):
            printed = tools.ddpfs("order", dataset, "-o", f"order=full,epoch={epoch},rank={rank},world=4,groups=4,redeal=2")
            assert paths and [line.split()[-1] for line in printed.stdout.splitlines()] == paths
        assert set(orders[0]) == set(orders[1]) != set(orders[2]) == set(orders[3])
        assert orders[0] != orders[1] and orders[2] != orders[3]


@pytest.mark.parametrize("world", [1, 3, 4])
def test_a_state_with_groups_goes_on_exactly_once(packed, world):
    dataset, files = packed
    seen = []
    for rank in range(2):
        stage = ddpfs.Stage(dataset, batch=5, order="full", seed=3, rank=rank, world=2, tail="short", groups=4, redeal=3,
                            memory="64M")
        for batch in [stage.next(), stage.next()]:
            seen += [batch.path(i) for i in range(len(batch))]
    state = stage.state_dict()
    assert '"groups":[4,3]' in state["ddpfs"]
    for rank in range(world):
        stage = ddpfs.Stage(dataset, batch=6, rank=rank, world=world, memory="64M")
        stage.load_state_dict(state)
        seen += [path for path, _ in names_and_bytes(stage)]
    assert sorted(seen) == sorted(files)


def test_a_stage_has_the_groups_of_its_mount(packed, mount):
    m = mount(packed[0], "rank=1,world=4,groups=2,redeal=2,order=full")
    with ddpfs.Stage(m.path, batch=7, memory="64M") as stage:
        paths = [path for path, _ in names_and_bytes(stage)]
    assert paths == (m.path / ".ddpfs/epoch/0.list").read_text().splitlines()


def test_views_are_the_arena_and_read_only(packed):
    dataset, files = packed
    stage = ddpfs.Stage(dataset, batch=20, memory="64M")
    batch = stage.next()
    arena = batch.arena
    for i in range(len(batch)):
        view = batch[i]
        assert view.dtype == np.uint8 and not view.flags.writeable
        assert np.shares_memory(view, arena) or view.size == 0
        start, length = int(batch.offsets[i]), int(batch.lengths[i])
        assert bytes(arena[start:start + length]) == files[batch.path(i)]
    with pytest.raises(ValueError):
        batch[0][...] = 0


def test_a_view_keeps_its_memory_after_the_batch_and_the_stage_are_gone(packed):
    dataset, files = packed
    stage = ddpfs.Stage(dataset, batch=len(files), memory="64M")
    batch = stage.next()
    kept = [(batch.path(i), batch[i]) for i in range(len(batch))]
    assert stage.stats()["held_bytes"] > 0
    batch.release()
    with pytest.raises(ValueError, match="released"):
        batch[0]
    stage.close()
    del batch, stage
    gc.collect()
    assert {path: bytes(view) for path, view in kept} == files


def test_dropping_views_gives_the_memory_back(packed):
    stage = ddpfs.Stage(packed[0], batch=30, memory="64M")
    views = list(stage.next())
    assert stage.stats()["held_bytes"] > 0
    del views
    gc.collect()
    assert stage.stats()["held_bytes"] == 0


@pytest.mark.parametrize("memory,batch", [("64M", 64), ("128M", 256)])
def test_a_plain_loop_gets_large_samples_among_small_ones(pack, scratch, memory, batch):
    """What batches hold leaves room enough, in many places: the loop neither waits for itself nor ends with an error."""
    datasets.write_tree(scratch / "mixed", classes=1, per_class=4000, sizes=(20_000,))
    for i in range(6):
        (scratch / "mixed" / "class_00" / f"large{i}.bin").write_bytes(bytes([i]) * 20_000_000)
    seen = {}
    with ddpfs.Stage(pack(scratch / "mixed"), batch=batch, memory=memory) as stage:
        for _ in range(2):
            for held in stage:
                for i, length in enumerate(held.lengths):
                    if length > 20_000:
                        name = held.path(i)
                        seen[name] = seen.get(name, 0) + 1
                        assert (held[i] == int(name[-5])).all()
                        try:
                            shared = np.shares_memory(held[i], held.arena)  # no assert: it would keep the view
                        except ValueError:  # it found no room in the arena
                            shared = True
                        assert shared
    assert len(seen) == 6 and set(seen.values()) == {2}


def test_ctrl_c_ends_a_wait_for_memory_that_the_program_keeps(pack, scratch, monkeypatch):
    monkeypatch.setattr(ddpfs.stage, "WARN_AFTER_S", 0)
    datasets.write_tree(scratch / "large", classes=1, per_class=64, sizes=(1_000_000,))
    stage = ddpfs.Stage(pack(scratch / "large"), batch=8, memory="32M")
    kept = []
    said = []

    def warn(text, *_, **__):
        said.append(text)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ddpfs.stage.warnings, "warn", warn)
    with pytest.raises(KeyboardInterrupt):
        while True:
            kept.append(stage.next())
    assert len(said) == 1 and "let go of batches" in said[0]
    last = kept[-1].turn
    kept.clear()
    gc.collect()
    assert stage.next().turn == last + 8


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS])
def test_a_ring_that_cannot_be_entered_leaves_pread_threads(packed, error):
    dataset, files = packed

    def work():
        with ddpfs.Stage(dataset, batch=7, memory="64M") as stage:
            return dict(names_and_bytes(stage)), stage.stats()["uring"]

    assert seccomp.refused(seccomp.IO_URING_ENTER, error, work) == (files, 0)


def test_iterating_again_is_the_next_epoch(packed):
    dataset, files = packed
    stage = ddpfs.Stage(dataset, batch=9, order="full", memory="64M")
    first, second = names_and_bytes(stage), names_and_bytes(stage)
    assert stage.position == (1, len(files), len(files))
    assert sorted(first) == sorted(second) and first != second
    stage.set_epoch(0)
    assert names_and_bytes(stage) == first


def test_drop_last_leaves_out_the_short_batch(packed):
    dataset, files = packed
    stage = ddpfs.Stage(dataset, batch=30, drop_last=True, memory="64M")
    assert len(stage) == len(files) // 30
    assert [batch.n_samples for batch in stage] == [30] * (len(files) // 30)


@pytest.mark.parametrize("world", [1, 3])
def test_a_state_goes_on_exactly_once(packed, world):
    dataset, files = packed
    seen = []
    for rank in range(2):
        stage = ddpfs.Stage(dataset, batch=5, order="full", seed=3, rank=rank, world=2, memory="64M")
        batches = iter(stage)
        for _ in range(4):
            batch = next(batches)
            seen += [batch.path(i) for i in range(len(batch))]
        state = stage.state_dict()
        assert state == stage.state_after(batch)
    for rank in range(world):
        stage = ddpfs.Stage(dataset, batch=6, rank=rank, world=world, memory="64M")
        stage.load_state_dict({"ddpfs": state["ddpfs"]})
        seen += [path for path, _ in names_and_bytes(stage)]
    # tail=pad of the state repeats up to world - 1 samples at the end; none is missing.
    assert set(seen) == set(files)
    assert len(seen) - len(files) < max(world, 1)


def test_a_file_by_path(packed):
    dataset, files = packed
    stage = ddpfs.Stage(dataset, memory="64M")
    for path in list(files)[:10]:
        assert bytes(stage.get(path)[0]) == files[path]
    with pytest.raises(OSError, match="no/such"):
        stage.get("no/such")


def test_a_damaged_sample_is_named(packed):
    dataset, files = packed
    victim = next(path for path, data in files.items() if len(data) == 65536)
    shard = next(dataset.glob("*.tar"))
    content = shard.read_bytes()
    at = content.index(files[victim])
    with open(shard, "r+b") as f:
        f.seek(at + 100)
        f.write(b"damage")
    stage = ddpfs.Stage(dataset, batch=10, memory="64M")
    good = set()
    while True:
        try:
            batch = stage.next()
        except ddpfs.StageError as error:
            assert victim in str(error) and error.sample is not None
            stage.skip(10)
            continue
        if batch is None:
            break
        good |= {batch.path(i) for i in range(len(batch))}
    assert victim not in good and len(good) == len(files) - 10


def damage(dataset, content):
    shard = next(dataset.glob("*.tar"))
    at = shard.read_bytes().index(content)
    with open(shard, "r+b") as f:
        f.seek(at + 100)
        f.write(b"damage")


@pytest.mark.parametrize("hook", [False, True])
def test_on_bad_leaves_a_damaged_sample_out_and_names_it(packed, hook):
    dataset, files = packed
    victim = next(path for path, data in files.items() if len(data) == 65536)
    damage(dataset, files[victim])
    told = []
    stage = ddpfs.Stage(dataset, batch=10, order="full", memory="64M", on_bad=told.append if hook else "skip")
    seen, turns = {}, []
    for batch in stage:
        seen |= {batch.path(i): bytes(batch[i]) for i in range(len(batch))}
        turns.append((batch.turn, batch.n_turns))
    assert seen == {path: data for path, data in files.items() if path != victim}
    assert turns == [(i, 10) for i in range(0, len(files), 10)]  # ranks keep step: as many batches as without
    assert stage.stats()["left_out"] == 1
    if hook:
        assert len(told) == 1 and victim in str(told[0]) and told[0].sample is not None
    state = stage.state_after(batch)  # counts it
    assert '"epoch":1' in state["ddpfs"]


def test_a_batch_of_bad_samples_only_is_empty(packed):
    dataset, files = packed
    victim = next(path for path, data in files.items() if len(data) == 65536)
    damage(dataset, files[victim])
    stage = ddpfs.Stage(dataset, batch=1, memory="64M", on_bad="skip")
    lengths = [(len(batch), batch.n_samples, batch.n_turns) for batch in stage]
    assert sorted(lengths) == [(0, 0, 1)] + [(1, 1, 1)] * (len(files) - 1)


def test_a_mount_can_be_opened(packed, scratch):
    """Dataset, rank, world, order, epoch and start are the mount's."""
    if not os.path.exists("/dev/fuse"):
        pytest.skip("no /dev/fuse on this machine")
    dataset, files = packed
    with ddpfs.mounted(dataset, rank=1, world=3, program=tools.tool("ddpfs"), order="full", seed=5, epoch=2,
                       mountpoint=_made(scratch), memory="64M") as place:
        tools.ddpfs("ctl", place, "state", 30)
        other = ddpfs.Stage(place, batch=7, memory="64M", rank=0, world=1)  # another part of the same
        assert other.position == (2, 0, len(files) - 30)
        of_mount = names_and_bytes(ddpfs.Stage(place, batch=7, memory="64M"))
        own = names_and_bytes(ddpfs.Stage(dataset, batch=7, memory="64M", order="full", seed=5, epoch=2, start=30, rank=1,
                                          world=3))
        assert of_mount == own and len(own) == (len(files) - 30 + 2) // 3
        with pytest.raises(ddpfs.StageError, match="seed"):
            ddpfs.Stage(place, memory="64M", seed=6).next()


def test_wrong_options_say_what_is_wrong(packed):
    for options, says in [({"rank": 3, "world": 2}, "rank 3"), ({"order": "random"}, "order=random"),
                          ({"memory": "1M"}, "32 MiB"), ({"backend": "abacus"}, "abacus")]:
        with pytest.raises(ddpfs.StageError, match=says):
            ddpfs.Stage(packed[0], **options).next()


def test_tensors_share_the_arena(packed):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    dataset, files = packed
    batch = ddpfs.Stage(dataset, batch=len(files), memory="64M").next()
    for i in range(len(batch)):
        tensor = batch.tensor(i)
        assert tensor.dtype == torch.uint8
        assert tensor.numel() == 0 or tensor.data_ptr() == batch[i].__array_interface__["data"][0]
        assert bytes(tensor.numpy()) == files[batch.path(i)]
    flat, offsets = batch.flat()
    assert flat.numel() == sum(batch.lengths)
    for i, (start, length) in enumerate(zip(offsets, batch.lengths)):
        assert bytes(flat[start:start + length].numpy()) == files[batch.path(i)]


def numpy_writes(batch, i):
    """Past numpy's read-only flag, as torch.from_numpy does."""
    import ctypes

    view = batch[i]
    ctypes.memset(view.__array_interface__["data"][0], 0, view.size)


def torch_writes(batch, i):
    pytest.importorskip("torch", reason="torch is not installed")
    batch.tensor(i).zero_()


@pytest.mark.parametrize("write", [numpy_writes, torch_writes])
def test_what_a_consumer_writes_is_not_in_a_later_epoch(packed, write):
    dataset, files = packed
    with ddpfs.Stage(dataset, batch=7, memory="64M") as stage:
        for batch in stage:
            for i in range(len(batch)):
                write(batch, i)
        del batch
        gc.collect()
        for _ in range(2):
            assert dict(names_and_bytes(stage)) == files
        assert stage.stats()["changed"] == sum(any(data) for data in files.values())
        assert stage.stats()["bad_blocks"] == 0


def test_what_a_consumer_writes_to_a_flat_tensor_is_its_own(packed):
    pytest.importorskip("torch", reason="torch is not installed")
    dataset, files = packed
    with ddpfs.Stage(dataset, batch=7, memory="64M") as stage:
        stage.next().flat()[0].zero_()
        stage.set_epoch(0)
        assert dict(names_and_bytes(stage)) == files


def test_two_batches_that_are_held_do_not_share_what_may_be_written(packed):
    """The sample comes twice while its first batch is held: writing to one is not seen in the other."""
    dataset, files = packed
    with ddpfs.Stage(dataset, batch=len(files), memory="64M") as stage:
        first = stage.next()
        stage.set_epoch(1)
        second = stage.next()
        for i in range(len(first)):
            numpy_writes(first, i)
        assert {second.path(i): bytes(second[i]) for i in range(len(second))} == files
        path = max(files, key=lambda name: len(files[name]))
        a, b = stage.get(path), stage.get(path)
        numpy_writes(a, 0)
        assert bytes(b[0]) == files[path] and not any(a[0])
        del a, b
        gc.collect()
        assert bytes(stage.get(path)[0]) == files[path]


def test_a_closed_stage_says_so(packed):
    stage = ddpfs.Stage(packed[0], batch=7, memory="64M")
    stage.next().release()
    stage.close()
    for use in (lambda: next(iter(stage)), stage.next, lambda: len(stage), stage.state_dict, lambda: stage.set_epoch(2)):
        with pytest.raises(ValueError, match="closed"):
            use()


@pytest.mark.parametrize("given, says", [
    ({"seed": 4}, "seed=4"), ({"order": "torch"}, "order=torch"), ({"tail": "drop"}, "tail=drop"),
    ({"deal": "block"}, "deal=block"), ({"groups": 4}, "groups=4"), ({"subdir": "class_01"}, "subdir=class_01")])
def test_a_state_of_another_order_is_refused_however_it_is_given(packed, given, says):
    stage = ddpfs.Stage(packed[0], batch=5, order="full", deal="stride", seed=3, memory="64M")
    stage.next().release()
    state = stage.state_dict()
    other = ddpfs.Stage(packed[0], batch=5, memory="64M", **given)
    with pytest.raises(ValueError, match=says):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match=says):
        ddpfs.Stage(packed[0], batch=5, memory="64M", state=state["ddpfs"], **given).next()


@pytest.mark.parametrize("given", [
    {"epoch": -1}, {"rank": -1}, {"world": -1}, {"seed": -1}, {"start": -1}, {"seed": 1 << 64}, {"rank": 1 << 32},
    {"epoch": 1.5}, {"epoch": "1"}, {"rank": None}, {"memory": "abc"}, {"memory": "-1"}, {"memory": -1}, {"memory": "nan"},
    {"memory": "infG"},
    {"memory": "M"}, {"memory": ""}, {"memory": -1e9}, {"device_memory": "x"}, {"batch": 2.5}, {"batch": 0}, {"batch": -1},
    {"batch": (1 << 20) + 1}, {"dataset": "a\0b"}, {"subdir": "a\0b"}, {"quarantine": "a\0b"}, {"quarantine": "/nope"},
    {"order": 5}, {"state": {}}], ids=repr)
def test_what_has_no_meaning_is_one_valueerror_that_names_the_parameter(packed, given):
    (name, _), = given.items()
    with pytest.raises(ValueError, match=f"(?s)^(\\[Errno 2\\] )?{name}=.*(give|NUL)"):
        ddpfs.Stage(**{"dataset": packed[0], **given})


def test_calls_with_no_meaning_are_valueerrors(packed):
    with ddpfs.Stage(packed[0], batch=5, memory="64M") as stage:
        for call in (lambda: stage.set_epoch(-1), lambda: stage.batches(-1), lambda: stage.skip(-1), lambda: stage.next(0),
                     lambda: stage.next(2.5), lambda: stage.get("a\0b"), lambda: stage.load_state_dict({}),
                     lambda: stage.load_state_dict({"ddpfs": 5}), lambda: stage.load_state_dict("x"),
                     lambda: stage.load_state_dict(None)):
            with pytest.raises(ValueError):
                call()
        assert stage.position[:2] == (0, 0)


def test_a_dataloader_takes_it(packed):
    pytest.importorskip("torch", reason="torch is not installed")
    from ddpfs.torch import StageDataset
    from torch.utils.data import DataLoader

    dataset, files = packed
    staged = StageDataset(dataset, batch=8, memory="64M")
    loader = DataLoader(staged, batch_size=None)
    assert len(loader) == len(staged) == -(-len(files) // 8)
    for epoch in range(2):
        staged.set_epoch(epoch)
        got = sorted(bytes(tensor.numpy()) for batch in loader for tensor in batch)
        assert got == sorted(files.values())


def test_workers_of_a_dataloader_are_refused(packed):
    pytest.importorskip("torch", reason="torch is not installed")
    if "tsan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("ThreadSanitizer knows no threads in the fork of a process that has some")
    from ddpfs.torch import StageDataset
    from torch.utils.data import DataLoader

    staged = StageDataset(packed[0], batch=8, memory="64M")
    with pytest.raises(RuntimeError, match="num_workers=0"):
        next(iter(DataLoader(staged, batch_size=None, num_workers=1)))


def steps_of(batch):
    return batch.steps.tolist()


def test_a_stateful_dataloader_goes_on_where_it_was(packed):
    """Its protocol by torchdata itself, in the middle of an epoch, and the epoch after it."""
    pytest.importorskip("torch", reason="torch is not installed")
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    from ddpfs.torch import StageDataset

    def loader():
        return stateful.StatefulDataLoader(
            StageDataset(packed[0], batch=5, seed=3, memory="64M", transform=steps_of), batch_size=None)

    first = loader()
    batches = iter(first)
    for _ in range(3):
        next(batches)
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    assert list(second) == list(batches)
    assert list(second) == list(first)
    assert len(second) == len(first)


def test_a_dataset_has_the_length_of_a_whole_epoch(packed):
    pytest.importorskip("torch", reason="torch is not installed")
    from ddpfs.torch import StageDataset

    dataset, files = packed
    first = StageDataset(dataset, batch=5, memory="64M")
    whole = -(-len(files) // 5)
    assert len(first) == whole
    next(iter(first))
    resumed = StageDataset(dataset, batch=5, memory="64M")
    resumed.load_state_dict(first.state_dict())
    assert len(resumed.stage) == -(-(len(files) - 5) // 5)
    assert len(resumed) == whole
    assert len(list(resumed)) == len(resumed.stage)


def test_mounted_mounts_for_the_length_of_the_block(packed, scratch):
    if not os.path.exists("/dev/fuse"):
        pytest.skip("no /dev/fuse on this machine")
    dataset, files = packed
    with ddpfs.mounted(dataset, rank=0, world=1, program=tools.tool("ddpfs"), layout="tree", mountpoint=_made(scratch),
                       memory="64M") as place:
        assert datasets.read_tree(place) == files
    assert not mounts.is_mounted(place)


def test_mounted_says_why_it_cannot(scratch):
    with pytest.raises(RuntimeError, match="nowhere"):
        with ddpfs.mounted(scratch / "nowhere", rank=0, world=1, program=tools.tool("ddpfs")):
            pass


def _made(scratch):
    place = scratch / "mnt"
    place.mkdir()
    return place


def test_the_headers_structs_are_those_of_the_binding(build_dir, scratch):
    """Sizes and offsets as a C compiler sees them."""
    from ctypes import sizeof

    from ddpfs import _lib

    source = scratch / "layout.c"
    fields = [(c, python, name) for c, python in (("stage_options", _lib.Options), ("stage_error", _lib.Error),
                                                  ("batch", _lib.Batch), ("stage_stats", _lib.Stats))
              for name, _ in python._fields_]
    lines = [f'printf("%zu\\n", offsetof(struct ddpfs_{c}, {name}));' for c, _, name in fields]
    lines += [f'printf("%zu\\n", sizeof(struct ddpfs_{c}));' for c in ("stage_options", "stage_error", "batch",
                                                                      "stage_stats", "item")]
    source.write_text(f'#include <stdio.h>\n#include "gpu_stage/stage.h"\nint main(void) {{ {"".join(lines)} }}\n')
    subprocess.run(["cc", "-I", tools.ROOT, "-o", scratch / "layout", source], check=True)
    seen = [int(n) for n in tools.run([scratch / "layout"]).stdout.split()]
    expected = [getattr(python, name).offset for _, python, name in fields]
    expected += [sizeof(p) for p in (_lib.Options, _lib.Error, _lib.Batch, _lib.Stats)] + [np.dtype(_lib.ITEM).itemsize]
    assert seen == expected and _lib.ITEM_BYTES == expected[-1]
