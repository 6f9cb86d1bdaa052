#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up what tests/run left in a folder and prints 'N passed, N failed, N skipped' as the last line.

    *.meson.json   one JSON object a line, as `meson test` logs them; cmocka's lines in the output count each test
    *.meson.rc     meson's exit code, when it was not 0
    *.pytest.xml   JUnit, as pytest writes it
    steps          lines OUTCOME<TAB>NAME<TAB>REASON of checks that are no test program's

A test program that crashes counts as failed, whatever it had printed before.  Needs only Python's own library."""

import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

CMOCKA = re.compile(r"^\[\s+(OK|FAILED|SKIPPED|ERROR)\s+\] (\w+)$", re.M)


class Tally:
    def __init__(self):
        self.passed = 0
        self.failed = []
        self.skipped = []

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
        reasons = re.findall(r"^skip(?:ped)?: (.*)$", output, re.M)
        self.skipped += [f"{where}: {name}: {'; '.join(reasons) or 'no reason given'}" for name in skipped]
        if test["result"] in ("OK", "EXPECTEDFAIL"):
            self.passed += not outcomes
        elif test["result"] == "SKIP":
            self.skipped += [] if skipped else [f"{where}: {'; '.join(reasons) or 'no reason given'}"]
        elif not failed:
            self.failed.append(f"{where}: {test['result'].lower()}, exit code {test.get('returncode')}")

    def pytest(self, path):
        for case in ET.parse(path).iter("testcase"):
            name = f"{case.get('classname')}.{case.get('name')}"
            bad = case.findall("failure") + case.findall("error")
            skip = case.find("skipped")
            if bad:
                self.failed.append(f"{name}: {(bad[0].get('message') or 'failed').splitlines()[0]}")
            elif skip is not None:
                self.skipped.append(f"{name}: {skip.get('message')}")
            else:
                self.passed += 1


def main(folder):
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
    for reason in tally.skipped:
        print(f"skipped: {reason}")
    for reason in tally.failed:
        print(f"failed: {reason}")
    print(f"{tally.passed} passed, {len(tally.failed)} failed, {len(tally.skipped)} skipped")
    return 1 if tally.failed or not tally.passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
