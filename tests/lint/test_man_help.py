# SPDX-License-Identifier: Apache-2.0
"""Man pages, the bash completion and the page of mount options list exactly the options that --help lists."""

import re
import shutil
import subprocess

import pytest

from helpers import tools

COMMON = {"-?", "--help", "--usage", "-V", "--version"}
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]*|-[A-Za-z0-9?])(?![\w-])")
PROGRAMS = ["ddpfs", "mkshard"]
COMPLETION = tools.ROOT / "tools/ddpfs.bash-completion"


def help_of(*command):
    return tools.run([tools.tool(command[0]), *command[1:], "--help"]).stdout


def commands_of(program):
    block = re.search(r"^Commands:\n((?:  .*\n)+)", help_of(program), re.M).group(1)
    return re.findall(r"^  ([a-z]+)", block, re.M)


def help_options(text):
    """The options that start a line of the list, before their explanation."""
    found = set()
    for line in text.splitlines():
        head = re.match(r" {2,6}(-[^\s,]*(?:, --\S+)?)", line)
        if head:
            found |= set(OPTION.findall(head.group(1)))
    return found


def help_mount_options(text):
    block = re.search(r"^Mount options .*\n((?:  .*\n?)+)", text, re.M).group(1)
    return set(re.findall(r"^  ([a-z0-9_]+)\b", block, re.M))


def man_sections(page):
    """{heading: options of its .TP heads}; ddpfs.1 has one .SS a command."""
    sections, heading, lines = {}, "", (tools.ROOT / "tools" / page).read_text().splitlines()
    for before, line in zip([""] + lines, lines):
        title = re.match(r'\.S[SH] "?([^"]*)"?$', line)
        if title:
            heading = title.group(1)
            sections.setdefault(heading, set())
        elif before == ".TP":
            plain = re.sub(r"\\f[A-Z]|\"|^\.[A-Z]+ ", "", line).replace("\\-", "-")
            sections[heading] |= set(OPTION.findall(plain))
    return sections


@pytest.mark.parametrize("program", PROGRAMS)
def test_man_page(build_dir, program):
    sections = man_sections(f"{program}.1")
    for command in commands_of(program):
        listed = help_options(help_of(program, command))
        assert listed >= COMMON, f"{command}: the test does not understand its --help"
        assert sections.get(f"{program} {command}") == listed - COMMON, f"{program} {command}"
    assert sections["Every command"] == COMMON == help_options(help_of(program))
    assert {s.split()[1] for s in sections if s.startswith(f"{program} ")} == set(commands_of(program))


def test_man_page_of_the_mount_helper(build_dir):
    assert man_sections("mount.ddpfs.8")["OPTIONS"] == help_options(help_of("mount.ddpfs"))


def test_mount_options(build_dir):
    listed = help_mount_options(help_of("ddpfs", "mount"))
    assert len(listed) > 20
    for other in ("ddpfs", "exec"), ("mount.ddpfs",):
        assert help_mount_options(help_of(*other)) == listed
    page = (tools.ROOT / "tools/ddpfs.1").read_text()
    section = page[page.index(".SH MOUNT OPTIONS"):page.index(".SH ENVIRONMENT")]
    assert set(re.findall(r"^\.TP\n\.B ([a-z0-9_]+)", section, re.M)) == listed
    assert {word.rstrip("=") for word in complete("ddpfs mount -o ")} == listed


def counters():
    """The names in stats.json, as the sources have them."""
    dynamic = (tools.ROOT / "fs/stats.c").read_text()
    recognise = "".join((tools.ROOT / "fs" / name).read_text() for name in ("sampler_stats.c", "announced_orders.c"))
    keys = set(re.findall(r'json_object_set_new\(\s*object, "(\w+)"', dynamic[:dynamic.index("char *fs_info_json")] + recognise))
    keys |= set(re.findall(r'^\t\t\{ "(\w+)",', dynamic, re.M))
    assert len(keys) > 70 and {"store_requests", "tier_hits", "limited_by"} <= keys
    return keys


def test_counters():
    """What stats.json holds is in the manual, and nothing else is."""
    page = (tools.ROOT / "tools/ddpfs.1").read_text()
    section = page[page.index(".SH COUNTERS"):page.index(".SH FILES")]
    assert {key for line in re.findall(r"^\.TP\n\.B (.*)", section, re.M) for key in line.split(", ")} == counters()


def test_counters_in_tables():
    """tools/MONITORING.md says what to do about each counter, once, and names no others."""
    page = (tools.ROOT / "tools/MONITORING.md").read_text()
    tables = "".join(re.findall(r"^\| counter \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.M))
    named = [key for row in tables.splitlines() for key in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(counters())


def test_limits_in_tables():
    """It has each value of `limited_by`."""
    source = (tools.ROOT / "fs/store_limit.c").read_text()
    said = set(re.findall(r'return "([^":]+): ', source[source.index("fs_store_limit_says"):]))
    page = (tools.ROOT / "tools/MONITORING.md").read_text()
    assert len(said) > 5
    assert {name for name in said if f"\n| `{name}` |" not in page} == set()


def complete(line):
    """What bash offers for a line."""
    if not shutil.which("bash"):
        pytest.skip("bash is not installed")
    script = (f'compopt() {{ :; }}; source {COMPLETION}; COMP_LINE=$1 COMP_POINT=${{#1}}; _${{1%% *}}; '
              'printf "%s\\n" "${COMPREPLY[@]}"')
    done = subprocess.run(["bash", "-c", script, "bash", line], capture_output=True, text=True, check=True)
    assert not done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("program", PROGRAMS)
def test_completion(build_dir, program):
    assert complete(f"{program} ") == set(commands_of(program))
    for command in commands_of(program):
        listed = {option for option in help_options(help_of(program, command)) if option.startswith("--")}
        assert complete(f"{program} {command} --") == listed, f"{program} {command}"


def test_completion_of_values(build_dir):
    assert complete("ddpfs mount -o rank=0,ord") == {"rank=0,order="}
    assert complete("ddpfs mount -o rank=0,order=t") == {"rank=0,order=torch"}
    assert complete("ddpfs exec --options=view=") == {"view=rank", "view=all"}
    assert complete("ddpfs exec --launcher=s") == {"slurm"}


@pytest.mark.parametrize("page", ["ddpfs.1", "mkshard.1", "mount.ddpfs.8"])
def test_man_pages_are_well_formed(build_dir, page):
    if not shutil.which("mandoc"):
        pytest.skip("mandoc is not installed")
    done = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", tools.ROOT / "tools" / page], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stdout


def test_page_of_mount_options(build_dir):
    """The first column of tools/OPTIONS.md names each mount option once; the last one says when it is needed."""
    page = (tools.ROOT / "tools/OPTIONS.md").read_text().partition("\n## Names in a flat directory")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| `")]
    listed = [name for row in rows for name in re.findall(r"(?:^|[ ,])`-?([a-z0-9_]+)(?==|`)", row[0])]
    assert sorted(listed) == sorted(help_mount_options(help_of("ddpfs", "mount"))), "tools/OPTIONS.md and `ddpfs mount --help` differ"
    assert all(len(row) == 3 and len(row[2]) > 5 for row in rows)
