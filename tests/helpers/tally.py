#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up what tests/run left in a folder and prints 'N passed, N failed, N skipped' as the last line.

    *.meson.json   one JSON object a line, as `meson test` logs them; cmocka's lines in the output count each test
    *.meson.rc     meson's exit code, when it was not 0
    *.pytest.xml   JUnit, as pytest writes it
    steps          lines OUTCOME<TAB>NAME<TAB>REASON of checks that are no test program's
    again/         the same files, of the second run of what --again names

A test program that crashes counts as failed, whatever it had printed before.  Versions of libraries with which tests
compare (the fixture `compared` of conftest.py) are printed in one line.  Needs only Python's own library.

`tally.py --again FOLDER` prints what to run a second time, a line each: `python<TAB>NODE` or `c<TAB>RUN<TAB>NAME`.  At most
AGAIN_MAX tests, or none: where more fail, the program is wrong.  Crashes, hangs and sanitizers' reports are never forgiven.  A test that
passes at the second run is counted as passed, and a line `unsteady: NAME: REASON` says so."""

import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

AGAIN_MAX = 3
CMOCKA = re.compile(r"^\[\s+(OK|FAILED|SKIPPED|ERROR)\s+\] (\w+)$", re.M)


class Tally:
    def __init__(self):
        self.passed = 0
        self.failed = []
        self.skipped = []
        self.compared = set()  # the versions of libraries with which tests that passed compare
        self.again = {}  # failed test -> how to run it a second time
        self.ok = set()  # what to run a second time, and passed

    def steps(self, path):
        for line in path.read_text().splitlines():
            outcome, name, reason = line.split("\t")
            if outcome == "passed":
                self.passed += 1
            else:
                (self.failed if outcome == "failed" else self.skipped).append(f"{name}: {reason}")

    def meson(self, path):
        run, failed_before = path.name.split(".")[0], len(self.failed)
        for line in path.read_text().splitlines():
            self.program(run, json.loads(line))
        rc = path.with_name(f"{run}.meson.rc")
        if rc.exists() and len(self.failed) == failed_before:
            self.failed.append(f"{run}: meson test ended with {rc.read_text().strip()}")

    def program(self, run, test):
        """One test program: cmocka's lines where it printed some, itself where not."""
        where = f"{run} {test['name']}"
        output = (test.get("stdout") or "") + (test.get("stderr") or "")
        outcomes = dict((name, outcome) for outcome, name in CMOCKA.findall(output))
        failed = [name for name, outcome in outcomes.items() if outcome in ("FAILED", "ERROR")]
        skipped = [name for name, outcome in outcomes.items() if outcome == "SKIPPED"]
        self.passed += sum(outcome == "OK" for outcome in outcomes.values())
        self.failed += [f"{where}: {name}" for name in failed]
        how = ("c", run, name_of(test["name"]))
        if test["result"] == "FAIL" and (test.get("returncode") or 0) >= 0 and failed and "Sanitizer" not in output:
            self.again.update((line, how) for line in self.failed[-len(failed):])
        reasons = re.findall(r"^skip(?:ped)?: (.*)$", output, re.M)
        self.skipped += [f"{where}: {name}: {'; '.join(reasons) or 'no reason given'}" for name in skipped]
        if test["result"] in ("OK", "EXPECTEDFAIL"):
            self.passed += not outcomes
            self.ok.add(how)
        elif test["result"] == "SKIP":
            self.skipped += [] if skipped else [f"{where}: {'; '.join(reasons) or 'no reason given'}"]
        elif not failed:
            self.failed.append(f"{where}: {test['result'].lower()}, exit code {test.get('returncode')}")

    def pytest(self, path):
        for case in ET.parse(path).iter("testcase"):
            name = f"{case.get('classname')}.{case.get('name')}"
            bad = case.findall("failure") + case.findall("error")
            how = ("python", f"{(case.get('classname') or '').replace('.', '/')}.py::{case.get('name')}")
            skip = case.find("skipped")
            if bad:
                message = bad[0].get("message") or "failed"
                self.failed.append(f"{name}: {message.splitlines()[0]}")
                if "the test hung" not in message:
                    self.again[self.failed[-1]] = how
            elif skip is not None:
                self.skipped.append(f"{name}: {skip.get('message')}")
            else:
                self.passed += 1
                self.ok.add(how)
                self.compared.update(p.get("value") for p in case.iter("property") if p.get("name") == "compared")


def name_of(line):
    """The name of a C test as `meson test` takes it: "SUITE - ddpfs:NAME", or of older meson "ddpfs:SUITE / NAME"."""
    return re.split(" [-/] ", line, maxsplit=1)[-1].removeprefix("ddpfs:")


def read(folder):
    tally = Tally()
    for path in sorted(Path(folder).iterdir()):
        try:
            if path.name == "steps":
                tally.steps(path)
            elif path.name.endswith(".meson.json"):
                tally.meson(path)
            elif path.name.endswith(".pytest.xml"):
                tally.pytest(path)
        except (ValueError, ET.ParseError) as error:
            tally.failed.append(f"{path.name}: unreadable results: {error}")
    return tally


def to_run_again(tally):
    """Ways to run the failed tests, each once; none if there are too many of them or one must not be forgiven."""
    if len(tally.failed) > AGAIN_MAX or set(tally.failed) - set(tally.again):
        return []
    return sorted(set(tally.again.values()))


def main(folder):
    tally, again = read(folder), Path(folder) / "again"
    unsteady = []
    if again.is_dir():
        passed = read(again).ok & set(to_run_again(tally))
        unsteady = [line for line in tally.failed if tally.again.get(line) in passed]
        tally.failed = [line for line in tally.failed if line not in unsteady]
        tally.passed += len(unsteady)
    if tally.compared:
        print(f"compared with: {', '.join(sorted(tally.compared, key=str.lower))}")
    for reason in tally.skipped:
        print(f"skipped: {reason}")
    for reason in unsteady:
        print(f"unsteady: {reason}")
    for reason in tally.failed:
        print(f"failed: {reason}")
    print(f"{tally.passed} passed, {len(tally.failed)} failed, {len(tally.skipped)} skipped")
    return 1 if tally.failed or not tally.passed else 0


if __name__ == "__main__":
    if sys.argv[1] == "--again":
        for line in to_run_again(read(sys.argv[2])):
            print("\t".join(line))
    else:
        sys.exit(main(sys.argv[1]))
