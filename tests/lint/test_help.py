# SPDX-License-Identifier: Apache-2.0
"""--help of every program and subcommand: on standard output, exit code 0, within 80 columns; wrong usage is 2."""

import re

import pytest

from helpers import tools

PROGRAMS = ["mkshard", "ddpfs", "mount.ddpfs"]


def subcommands(program):
    """The words that `program --help` lists under its commands."""
    help_text = tools.run([tools.tool(program), "--help"]).stdout
    block = re.search(r"^commands:\n((?: .*\n|\n)+)", help_text, re.M | re.I)
    return re.findall(r"^ {1,4}([a-z][a-z-]*)\b", block.group(1), re.M) if block else []


def all_commands():
    for program in PROGRAMS:
        yield [program]
        for sub in subcommands(program):
            yield [program, sub]


def test_help_fits_80_columns(build_dir):
    seen, wrong = 0, []
    for command in all_commands():
        done = tools.run([tools.tool(command[0]), *command[1:], "--help"], check=False)
        seen += 1
        if done.returncode != 0 or not done.stdout.strip() or done.stderr:
            wrong.append(f"{' '.join(command)} --help: exit code {done.returncode}, stderr {done.stderr!r}")
        wrong += [f"{' '.join(command)}: {len(line)} columns: {line}" for line in done.stdout.splitlines()
                  if len(line.expandtabs()) > 80]
    assert not wrong, "\n".join(wrong)
    assert seen > len(PROGRAMS), "no subcommands found in --help: this test looks at nothing"


def test_every_command_takes_h_and_version(build_dir):
    for command in all_commands():
        def said(option):
            done = tools.run([tools.tool(command[0]), *command[1:], option], check=False)
            assert done.returncode == 0 and not done.stderr, (command, option, done.stderr)
            return done.stdout
        assert said("-h") == said("--help"), command
        assert re.fullmatch(rf"{command[0]} \(ddpfs\) \d+\.\d+\.\d+\n", said("--version")), command


@pytest.mark.parametrize("program", PROGRAMS)
def test_version(build_dir, program):
    assert re.search(r"\d+\.\d+\.\d+", tools.run([tools.tool(program), "--version"]).stdout)


@pytest.mark.parametrize("program", PROGRAMS)
def test_wrong_usage_exits_2(build_dir, program):
    done = tools.run([tools.tool(program), "--no-such-option"], check=False)
    assert done.returncode == (1 if program == "mount.ddpfs" else 2)  # mount(8) wants 1
    assert len(done.stderr.strip().splitlines()) in (1, 2), done.stderr
    assert not done.stdout
