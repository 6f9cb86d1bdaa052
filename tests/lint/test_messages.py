# SPDX-License-Identifier: Apache-2.0
"""tools/MESSAGES.md has every error and warning of `ddpfs` and mount.ddpfs, each below its cure, and no others.

The messages are read out of the sources: the format strings of the functions that report.  A conversion (%s) or a macro
stands on the page as one character, U+2026.  A string that only passes on another message is left out."""

import re

from lint import sources

PAGE = "tools/MESSAGES.md"
ROOMS = ("tools/common/", "tools/ddpfs/", "fs/", "prefetch/", "cache/", "shard/")
# Only mkshard prints these: they are about sources that it packs and shards that it indexes, and say themselves what to do.
MKSHARD = re.compile(r"shard/(bare|build|pack|tar|unpack|extract|archive)\w*\.c")
REPORT = re.compile(r"\b(?:cli_usage|cli_failf|cli_warn|base_err_set|base_err_prefix|log_error|log_warning|"
                    r"fs_log_queue_note)\s*\(")
TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|/\*.*?\*/|[()]', re.S)
LITERALS = re.compile(r'\s*(?:"((?:[^"\\\n]|\\.)*)"|PRI[a-z]\w+|[A-Z][A-Z0-9_]+\b)')
CONVERSION = re.compile(r"%[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|z|j|t)?(?:[a-zA-Z]|$)")


def arguments(text, start):
    """What stands between the parenthesis before `start` and the one that closes it."""
    depth = 1
    for token in TOKEN.finditer(text, start):
        depth += {"(": 1, ")": -1}.get(token.group(), 0)
        if depth == 0:
            return text[start:token.start()]
    return text[start:]


def format_of(call):
    """The first string of a call, with the strings and macros that are joined to it; None: it has no string."""
    at, parts = call.find('"'), []
    while at >= 0 and (found := LITERALS.match(call, at)):
        macro = "u" if found.group().lstrip().startswith("PRI") else "%s"
        parts.append(macro if found.group(1) is None else found.group(1))
        at = found.end()
    return "".join(parts) if parts else None


def shown(fmt):
    """A format string as the page shows it."""
    text = fmt.replace("%%", "\0").replace('\\"', '"').replace("\\\\", "\\")
    return re.sub("\u2026+", "\u2026", CONVERSION.sub("\u2026", text)).replace("\0", "%").strip()


def printed():
    """{message: file} of the sources."""
    found = {}
    for name in sources.c_files():
        if not name.endswith(".c") or not name.startswith(ROOMS) or MKSHARD.fullmatch(name):
            continue
        text = sources.text(name)
        for call in REPORT.finditer(text):
            fmt = format_of(arguments(text, call.end()))
            if fmt and re.search("[A-Za-z]{2}", message := shown(fmt)):
                found.setdefault(message, name)
    return found


def on_the_page():
    """[(message, cure)] of the page: the lines of its text blocks; an indented line continues the one before it."""
    rows, cure = [], ""
    for section in re.split(r"^### .*$", sources.text(PAGE), flags=re.M)[1:]:
        cure, _, block = section.partition("```text\n")
        lines = block.partition("\n```")[0].replace("\n  ", " ").split("\n")
        rows += [(line, cure.strip()) for line in lines]
    return rows


def test_every_message_stands_on_the_page_with_its_cure():
    rows, messages = on_the_page(), printed()
    assert len(messages) > 300, "the sources' messages are not found any more: see REPORT"
    page = [line for line, _ in rows]
    missing = [f"{name}: {message}" for message, name in messages.items() if message not in page]
    gone = sorted(set(page) - set(messages))
    assert not missing, f"add each to the text block of its cure in {PAGE}, or to a new section:\n" + "\n".join(missing)
    assert not gone, f"no program prints these any more; take them out of {PAGE}:\n" + "\n".join(gone)
    assert len(page) == len(set(page)), "twice on the page: " + ", ".join(sorted({m for m in page if page.count(m) > 1}))
    assert not [line for line, cure in rows if len(cure) < 20], "messages without a cure above them"
