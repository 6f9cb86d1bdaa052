# SPDX-License-Identifier: Apache-2.0
"""tests/run's last line counts what happened: a crash is a failure whatever was printed before it."""

import json

import pytest

from helpers import tally

CMOCKA = """[==========] order: Running 3 test(s).
[ RUN      ] bijection
[       OK ] bijection
[ RUN      ] inverse
[  ERROR   ] --- 0x1 != 0x2
[   LINE   ] order_test.c:12: error: Failure!
[  FAILED  ] inverse
[ RUN      ] torch
[  SKIPPED ] torch
[==========] order: 3 test(s) run.
[  PASSED  ] 1 test(s).
[  FAILED  ] order: 1 test(s), listed below:
[  FAILED  ] inverse
"""


def program(result="OK", stdout="", stderr="", code=0):
    return json.dumps({"name": "unit - ddpfs:fs/t", "result": result, "stdout": stdout, "stderr": stderr, "returncode": code}) + "\n"


def last_line(capsys, folder):
    rc = tally.main(folder)
    return rc, capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("log, counts", [
    (program(stdout="plain program"), "1 passed, 0 failed, 0 skipped"),
    (program("FAIL", stderr=CMOCKA, code=1), "1 passed, 1 failed, 1 skipped"),
    (program("FAIL", stdout="[       OK ] one\n", code=-11), "1 passed, 1 failed, 0 skipped"),
    (program("TIMEOUT"), "0 passed, 1 failed, 0 skipped"),
    (program("SKIP", code=77), "0 passed, 0 failed, 1 skipped"),
    ("not json", "0 passed, 1 failed, 0 skipped"),
])
def test_c_programs(tmp_path, capsys, log, counts):
    (tmp_path / "unit.meson.json").write_text(log)
    assert last_line(capsys, tmp_path) == (0 if "1 passed, 0 failed" in counts else 1, counts)


def test_runner_that_fails_without_a_failing_test_counts(tmp_path, capsys):
    (tmp_path / "unit.meson.json").write_text(program())
    (tmp_path / "unit.meson.rc").write_text("2\n")
    assert last_line(capsys, tmp_path) == (1, "1 passed, 1 failed, 0 skipped")


def test_python_and_steps(tmp_path, capsys):
    (tmp_path / "mount.pytest.xml").write_text(
        '<testsuites><testsuite><testcase classname="m" name="a"/><testcase classname="m" name="b"><failure message="x"/>'
        '</testcase><testcase classname="m" name="c"><skipped message="no fuse"/></testcase></testsuite></testsuites>')
    (tmp_path / "steps").write_text("passed\tbuild: gcc\t\nfailed\tmount\tpytest ended with 3\n")
    assert last_line(capsys, tmp_path) == (1, "2 passed, 2 failed, 1 skipped")


def test_versions_with_which_tests_compared_are_told_once(tmp_path, capsys):
    """Those of tests that passed, of all parts."""
    def case(name, version, outcome=""):
        told = f'<properties><property name="compared" value="{version}"/></properties>'
        return f'<testcase classname="m" name="{name}">{told}{outcome}</testcase>'

    (tmp_path / "a.pytest.xml").write_text(
        f'<testsuite>{case("a", "numpy 2.4.6")}{case("b", "numpy 2.4.6")}</testsuite>')
    (tmp_path / "b.pytest.xml").write_text(
        f'<testsuite>{case("c", "DALI 2.4.0")}{case("d", "torch 2.1", "<skipped/>")}'
        f'{case("e", "timm 1.0", "<failure/>")}</testsuite>')
    assert last_line(capsys, tmp_path)[1] == "3 passed, 1 failed, 1 skipped"
    tally.main(tmp_path)
    assert capsys.readouterr().out.splitlines().count("compared with: DALI 2.4.0, numpy 2.4.6") == 1


def test_nothing_run_is_a_failure(tmp_path, capsys):
    assert last_line(capsys, tmp_path) == (1, "0 passed, 0 failed, 0 skipped")


FAILED = '<testsuites><testsuite>' + ''.join(f'<testcase classname="m.test_a" name="{name}"><failure message="x"/></testcase>'
                                             for name in "bcde") + '</testsuite></testsuites>'
ONE_FAILED = '<testsuite><testcase classname="m.test_a" name="b[1-x]"><failure message="x"/></testcase></testsuite>'
ONE_PASSED = '<testsuite><testcase classname="m.test_a" name="b[1-x]"/></testsuite>'


@pytest.mark.parametrize("name", ["unit - ddpfs:fs/t, twice", "ddpfs:unit / fs/t, twice"])
def test_what_failed_is_run_again(tmp_path, name):
    """Debian 12's meson names a C test in another way than later ones."""
    (tmp_path / "m.pytest.xml").write_text(ONE_FAILED)
    (tmp_path / "unit.meson.json").write_text(program("FAIL", stderr=CMOCKA, code=1).replace("unit - ddpfs:fs/t", name))
    assert tally.to_run_again(tally.read(tmp_path)) == [("c", "unit", "fs/t, twice"), ("python", "m/test_a.py::b[1-x]")]


@pytest.mark.parametrize("name, log", [
    ("m.pytest.xml", FAILED),
    ("unit.meson.json", program("FAIL", stderr=CMOCKA + "WARNING: ThreadSanitizer: data race", code=66)),
    ("unit.meson.json", program("FAIL", stderr=CMOCKA, code=-11)),
    ("unit.meson.json", program("TIMEOUT")),
    ("m.pytest.xml", ONE_FAILED.replace('"x"', '"AssertionError: the test hung: its mounts were aborted"')),
    ("steps", "failed\tmount\tpytest ended with 3\n"),
])
def test_many_failures_crashes_and_reports_are_not_run_again(tmp_path, name, log):
    (tmp_path / name).write_text(log)
    assert tally.to_run_again(tally.read(tmp_path)) == []


@pytest.mark.parametrize("second, rc, counts", [
    (ONE_PASSED, 0, "1 passed, 0 failed, 0 skipped"),
    (ONE_FAILED, 1, "0 passed, 1 failed, 0 skipped"),
    ("not xml", 1, "0 passed, 1 failed, 0 skipped"),
])
def test_the_second_run_counts_and_is_told(tmp_path, capsys, second, rc, counts):
    (tmp_path / "m.pytest.xml").write_text(ONE_FAILED)
    (tmp_path / "again").mkdir()
    (tmp_path / "again/1.pytest.xml").write_text(second)
    assert tally.main(tmp_path) == rc
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == counts
    assert ("unsteady: m.test_a.b[1-x]: x" in lines) == (rc == 0)
