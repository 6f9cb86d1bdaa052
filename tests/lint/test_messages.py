# SPDX-License-Identifier: Apache-2.0
"""tools/MESSAGES.md has every message of `ddpfs` and mount.ddpfs, each below its cure, and no others: errors, warnings,
notes, refusals of the control socket, and what `ddpfs doctor` finds.

The messages are read out of the sources: the format strings of the functions that report, each branch of a `?:`.
A conversion (%s) or a number's macro stands on the page as one character, U+2026.  A string that only passes on another
message is left out."""

import re
from functools import cache

from lint import sources

PAGE = "tools/MESSAGES.md"
ROOMS = ("tools/common/", "tools/ddpfs/", "fs/", "prefetch/", "cache/", "shard/")
# Only mkshard prints these: they are about sources that it packs and shards that it indexes, and say themselves what to do.
MKSHARD = re.compile(r"shard/(bare|build|pack|tar|unpack|extract|archive)\w*\.c")

# Which argument of a function is the format of a message.
EVERYWHERE = {"cli_usage": 0, "cli_failf": 0, "cli_warn": 0, "cli_note": 0, "argp_error": 1, "base_err_set": 2,
              "base_err_prefix": 1, "log_error": 0, "log_warning": 0, "log_info": 0, "fs_log_queue_note": 1,
              "doctor_say": 3, "snprintf": 2}
NOTES = ("note", "ret_note")  # snprintf counts with these only: notes of `ddpfs stat`
NOTE_IS = re.compile(r"\bnote\s*=(?=\s*\")")  # and so does a string that becomes a note: of `ddpfs top`
IN_FILE = {"fs/control_server.c": {"refuse": 0},
           "fs/follow_request.c": {"refuse_at": 2},
           "tools/common/view_options.c": {"bad": 3}}
# What stands there instead of a string: the function's own parameter, or a message that is on the page already.
PASSED_ON = {"const char *fmt", "const char *why", "const char *expected", "base_err_str(rc)", "strerror(-rc)",
             "answer.text"}

TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|/\*.*?\*/|[][(){},?:]', re.S)
LITERAL = re.compile(r'\s*(?:"((?:[^"\\\n]|\\.)*)"|([A-Z][A-Z0-9_]+[a-z]*\d*))')
MACRO = re.compile(r'^#define ([A-Z0-9_]+)((?:[ \t]|\\\n)+"(?:.|\\\n)*)$', re.M)
CONVERSION = re.compile(r"%[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|z|j|t)?(?:[a-zA-Z]|$)")


@cache
def macros():
    """{name: its string} of all macros that are strings."""
    found = [MACRO.findall(sources.text(name)) for name in sources.c_files() if name.startswith(ROOMS)]
    return {name: joined(text.replace("\\\n", " ")) or "%s" for one in found for name, text in one}


def joined(text):
    """The string that literals and macros beside each other make; None: the text is something else."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S).strip()
    at, parts = 0, []
    while found := LITERAL.match(text, at):
        literal, macro = found.groups()
        # The conversion of a PRIu64 begins in the literal before it.
        parts.append(literal if macro is None else "u" if macro.startswith("PRI") else macros().get(macro, "%s"))
        at = found.end()
    return "".join(parts) if '"' in text and at == len(text) else None


def pieces(text, start, separators):
    """Yields (piece, what ends it) up to the parenthesis that closes; separators inside of brackets do not count."""
    depth, at = 0, start
    for token in TOKEN.finditer(text, start):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(token.group(), 0)
        if depth < 0 or (depth == 0 and token.group() in separators):
            yield text[at:token.start()], token.group()
            at = token.end()
        if depth < 0:
            return
    yield text[at:], ""


def formats_of(argument):
    """The strings that an argument can be; None in the list: something that is no string."""
    return [joined(piece) for piece, end in pieces(argument, 0, "?:") if end != "?"]


def shown(fmt):
    """A format string as the page shows it."""
    text = fmt.replace("%%", "\0").replace('\\"', '"').replace("\\\\", "\\")
    return re.sub("\u2026+", "\u2026", CONVERSION.sub("\u2026", text)).replace("\0", "%").strip()


def calls():
    """Yields (file, function, its arguments, the argument that is the format) of all calls that report."""
    for name in sources.c_files():
        if not name.endswith(".c") or not name.startswith(ROOMS) or MKSHARD.fullmatch(name):
            continue
        functions = {**EVERYWHERE, **IN_FILE.get(name, {})}
        text = sources.text(name)
        for call in re.finditer(rf"\b({'|'.join(functions)})\s*\(", text):
            arguments = [piece.strip() for piece, _ in pieces(text, call.end(), ",")]
            if call.group(1) != "snprintf" or arguments[0] in NOTES:
                yield name, call.group(1), arguments, arguments[functions[call.group(1)]]
        for note in NOTE_IS.finditer(text):
            value = text[note.end():text.index(";", note.end())]
            yield name, "note", [value], value


def printed():
    """{message: file} of the sources."""
    found = {}
    for name, function, arguments, argument in calls():
        if function == "doctor_say" and arguments[1] == "DOCTOR_OK":
            continue  # nothing to do
        for fmt in formats_of(argument):
            if fmt and function == "bad":  # view_options.c: "KEY=VALUE: ..."
                fmt = (joined(arguments[1]) or "%s") + "=%s: " + fmt
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
    assert len(messages) > 450, "the sources' messages are not found any more: see EVERYWHERE"
    page = [line for line, _ in rows]
    missing = [f"{name}: {message}" for message, name in messages.items() if message not in page]
    gone = sorted(set(page) - set(messages))
    assert not missing, f"add each to the text block of its cure in {PAGE}, or to a new section:\n" + "\n".join(missing)
    assert not gone, f"no program prints these any more; take them out of {PAGE}:\n" + "\n".join(gone)
    assert len(page) == len(set(page)), "twice on the page: " + ", ".join(sorted({m for m in page if page.count(m) > 1}))
    assert not [line for line, cure in rows if len(cure) < 20], "messages without a cure above them"


def test_every_message_can_be_read_out_of_the_sources():
    other = {f"{name}: {function}: {argument}" for name, function, _, argument in calls()
             if None in formats_of(argument) and argument not in PASSED_ON}
    assert not other, "write the string into the call, so that it is compared with the page:\n" + "\n".join(sorted(other))


def test_every_finding_of_doctor_has_its_cure():
    bare = [f"{name}: {argument}" for name, function, arguments, argument in calls()
            if function == "doctor_say" and arguments[1].startswith("DOCTOR_") and (arguments[1] == "DOCTOR_OK") != (arguments[2] == "NULL")]
    assert not bare, bare
