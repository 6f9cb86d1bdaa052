# SPDX-License-Identifier: Apache-2.0
"""Ranges of objects come whole and right from servers that fail (shard/remote/client.h)."""

import json
import random
import subprocess
import threading
import time

import pytest

SIZE = 24 << 20


@pytest.fixture
def object_bytes(http_store):
    data = random.Random(1).randbytes(SIZE)
    (http_store.root / "a b=c.bin").write_bytes(data)
    return data


@pytest.fixture
def read(build_dir, http_store):
    def run(chunk=100_000, depth=32, timeout_ms=20_000, path="a b=c.bin", size=SIZE, program="remote_read"):
        done = subprocess.run([build_dir / "tests/shard" / program, http_store.url, path, str(size), str(chunk),
                               str(depth), str(timeout_ms)], capture_output=True, timeout=120)
        errors = done.stderr.decode().splitlines()
        return done.stdout, json.loads(errors[-1]), errors[:-1]
    return run


@pytest.mark.parametrize("faults", [
    {},
    {"p503": 0.1, "latency_ms": 2},
    {"p429": 0.02},
    {"reset": 0.1},
    {"cut": 0.1},
    {"stall": 0.01, "stall_ms": 3000, "latency_ms": 2},
    {"tail": 0.02, "tail_ms": 2000, "latency_ms": 2},
    {"p503": 0.05, "reset": 0.02, "cut": 0.01, "stall": 0.01, "stall_ms": 2000, "latency_ms": 5},
], ids=lambda f: "-".join(f) or "none")
def test_all_bytes_come_in_spite_of(faults, http_store, object_bytes, read):
    http_store.set(**faults)
    data, stats, errors = read()
    assert not errors and stats["failed"] == 0
    assert data == object_bytes


def test_a_store_that_becomes_much_slower_is_heard(http_store, object_bytes, read):
    """A transfer is given up after 5 s of silence if answers took milliseconds; the last 8 take 8 s."""
    http_store.set(slow_from=33, slow_ms=8000)
    data, stats, errors = read(chunk=SIZE // 40 + 1, depth=8, timeout_ms=20_000)
    assert not errors and stats["failed"] == 0 and data == object_bytes, stats


def test_connections_that_the_kernel_does_not_watch_are_looked_at(http_store, object_bytes, read):
    data, stats, errors = read(program="remote_read_full_epoll")
    assert stats["failed"] == 0 and data == object_bytes
    assert stats["retries"] == 0, stats
    assert len(errors) == 1 and "cannot watch a connection" in errors[0], errors


def test_bodies_that_were_cut_continue_where_they_ended(http_store, object_bytes, read):
    http_store.set(cut=0.3)
    data, stats, _ = read(chunk=1 << 20)
    assert data == object_bytes
    # What a body brought before it was cut is not fetched again, but for what a second request beside it brings.
    assert stats["retries"] > 0 and stats["wasted_bytes"] <= stats["hedged"] << 20, stats


@pytest.mark.parametrize("date", [0, 1], ids=["seconds", "date"])
def test_a_store_that_names_a_time_is_not_asked_before(date, http_store, object_bytes, read):
    """Retry-After: 1, or a date.  Without it the first pauses are milliseconds."""
    http_store.set(p429=1, retry_date=date)
    back = subprocess.Popen(["bash", "-c", f"sleep 3.5; echo '{{}}' > '{http_store.faults}'"])
    try:
        data, stats, _ = read(chunk=SIZE, depth=1)
    finally:
        back.wait()
    assert data == object_bytes
    refused = [line[0] for line in http_store.answers()].count("429")
    assert 1 <= refused <= 4 and stats["throttled"] == refused, (refused, stats)


def test_slow_answers_get_a_second_request(http_store, object_bytes, read):
    http_store.set(latency_ms=5, tail=0.05, tail_ms=15_000)
    data, stats, _ = read()
    assert data == object_bytes
    assert stats["hedged"] > 0, stats
    assert stats["seconds"] < 15, "a slow answer was waited for"


def test_a_store_that_pauses_gets_no_second_requests(http_store, object_bytes, read):
    """All its answers are late then, so none of them is slow."""
    http_store.set(latency_ms=100)
    store, hedged = http_store.process.pid, []
    for _ in range(4):  # on a busy machine the pause is longer
        back = subprocess.Popen(["sh", "-c", f"sleep 0.4; kill -STOP {store}; sleep 0.6; kill -CONT {store}"])
        try:
            data, stats, _ = read()
        finally:
            back.wait()
        assert data == object_bytes
        hedged.append(stats["hedged"])
        if not hedged[-1]:
            return
    assert not min(hedged), hedged


def test_each_body_that_stalls_is_continued_by_a_second_request(http_store, object_bytes, read):
    http_store.set(latency_ms=200, each_stall=8, stall_ms=60_000)
    data, stats, _ = read(chunk=1 << 20, depth=4)
    assert data == object_bytes
    assert stats["hedged"] >= SIZE // (1 << 20) // 8, stats
    # No read was given up after seconds of silence, as when the second request fails at once.
    assert stats["retries"] == 0, stats


def test_a_retry_waits_for_nothing_else(http_store, object_bytes, read):
    http_store.set(each_503=2)
    data, stats, _ = read(chunk=400_000, depth=1)
    assert data == object_bytes
    assert stats["retries"] > SIZE // 400_000 // 2
    assert stats["seconds"] < stats["retries"] / 2, "a retry waited for the thread's next tick"


def test_refusals_of_a_few_requests_do_not_mean_that_fewer_are_asked(http_store, object_bytes, read):
    http_store.set(each_503=20, latency_ms=5)
    data, stats, _ = read()
    assert data == object_bytes
    assert stats["throttled"] > 0 and stats["limit"] == 512, stats


@pytest.mark.parametrize("faults", [{"at_once": 8, "latency_ms": 100}, {"rate": 60, "latency_ms": 100}],
                         ids=["at_once", "rate"])
def test_a_store_that_throttles_is_asked_for_what_it_gives(faults, http_store, object_bytes, read):
    http_store.set(**faults)
    data, stats, _ = read(chunk=200_000, depth=64)
    assert data == object_bytes
    assert stats["limit"] < 64, stats
    answers = [line[0] for line in http_store.answers()]
    late = answers[len(answers) // 2:]
    assert late.count("503") < len(late) / 2, (stats, answers.count("503"))


def test_a_store_that_is_asked_too_much_is_asked_less(http_store, object_bytes, read):
    http_store.set(p503=0.6, latency_ms=2)
    data, stats, _ = read(chunk=400_000, timeout_ms=100_000)
    assert data == object_bytes
    assert stats["limit"] < 32


@pytest.mark.parametrize("fault", ["wrong_range", "no_range"])
def test_bytes_of_another_range_are_not_taken(fault, http_store, object_bytes, read):
    http_store.set(**{fault: 0.2})
    data, stats, errors = read()
    assert not errors and data == object_bytes
    assert stats["retries"] > 0 and "another range" in stats["error"], stats


def test_the_time_of_a_read_begins_with_its_first_request(http_store, object_bytes, read):
    """More are asked for than there are transfers.  The refusal meets one that has waited for its turn."""
    http_store.set(latency_ms=1500, each_503=600)
    data, stats, errors = read(chunk=40_000, depth=620, timeout_ms=2900)
    assert not errors and data == object_bytes, (errors, stats)
    assert stats["retries"] > 0, stats


def test_an_object_that_is_replaced_is_stale(http_store, object_bytes, read):
    http_store.set(latency_ms=20)
    path = http_store.root / "a b=c.bin"
    process = None
    try:
        # The object changes after a part of it came: a process of its own replaces it when the log shows requests.
        process = subprocess.Popen(["bash", "-c", f"until [ $(wc -l < '{http_store.log}') -ge 20 ]; do sleep 0.01; done; "
                                    f"head -c {SIZE} /dev/zero > '{path}.new'; mv '{path}.new' '{path}'"])
        _, stats, errors = read(chunk=50_000, depth=4)
    finally:
        process.kill()
        process.wait()
    assert stats["failed"] > 0
    assert all("changed" in line for line in errors), errors[0]


@pytest.mark.parametrize("path, size, said", [("none.bin", 1000, "No such file"), ("a b=c.bin", SIZE - 1, "changed"),
                                              ("a b=c.bin", SIZE + 5, "changed")])
def test_what_is_not_there_is_said(path, size, said, object_bytes, read):
    _, stats, errors = read(path=path, size=size, chunk=1 << 30, depth=1)
    assert stats["failed"] == 1 and said in errors[0], errors


def test_a_server_without_ranges_is_refused_at_once(http_store, object_bytes, read):
    http_store.set(whole=1)
    _, stats, errors = read(chunk=1 << 20)
    assert stats["failed"] == SIZE // (1 << 20) - 1  # the first range is the begin of the whole object
    assert "does not answer ranges" in stats["error"]


def test_a_store_that_is_away_is_waited_for(http_store, object_bytes, read, build_dir):
    http_store.set(down=1)
    back = subprocess.Popen(["bash", "-c", f"sleep 3; echo '{{}}' > '{http_store.faults}'"])
    try:
        data, stats, _ = read(timeout_ms=60_000)
    finally:
        back.wait()
    assert data == object_bytes and stats["retries"] > 0


def test_a_store_that_stays_away_is_an_error_after_the_timeout(http_store, object_bytes, read):
    http_store.set(down=1)
    _, stats, errors = read(timeout_ms=1500, chunk=SIZE)
    assert stats["failed"] == 1 and "timed out" in errors[0]
    assert stats["seconds"] < 30


def test_a_time_that_a_store_names_does_not_outlast_the_timeout(http_store, object_bytes, read):
    http_store.set(p429=1, retry_after=30)
    _, stats, errors = read(timeout_ms=1500, chunk=SIZE)
    assert stats["failed"] == 1 and "timed out" in errors[0]
    assert stats["seconds"] < 10, stats


def test_reads_of_which_the_timeout_is_near_are_not_all_tried_at_once(http_store, read):
    http_store.set(p429=1, retry_after=60)
    came = []  # when the store was seen to have answered one more

    def watch(done):
        while not done.wait(0.005):
            came.extend([time.monotonic()] * (len(http_store.answers()) - len(came)))

    done = threading.Event()
    thread = threading.Thread(target=watch, args=[done])
    thread.start()
    try:
        read(timeout_ms=4000, chunk=SIZE // 8)
    finally:
        done.set()
        thread.join()
    last = [when for when in came if when > came[0] + 2]
    assert len(last) >= 8 and last[-1] - last[0] > 0.1, "over half a second"
