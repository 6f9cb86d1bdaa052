# SPDX-License-Identifier: Apache-2.0
"""The arrows between the folders go down only (ARCHITECTURE.md), and the tree holds what the layout names."""

import re

from lint import sources

# A room may include its own headers and those of the rooms named here.
BELOW = {
    "shard/base": (),
    "shard/remote": ("shard/base",),
    "shard": ("shard/remote", "shard/base"),
    "cache": ("shard", "shard/base"),
    "prefetch": ("cache", "shard", "shard/remote", "shard/base"),
    "prefetch/sampler": ("shard", "shard/base"),
    "fs": ("fs/supervise", "prefetch", "prefetch/sampler", "cache", "shard", "shard/remote", "shard/base"),
    "fs/supervise": ("shard", "shard/base"),
    "gpu_stage": ("prefetch", "cache", "shard", "shard/base"),
    "gpu_stage/examples": ("gpu_stage", "shard/base"),
    "tools/common": ("shard", "shard/base"),
    "tools/package": (),
    "tools/mkshard": ("tools/common", "prefetch", "shard", "shard/remote", "shard/base"),
    "tools/ddpfs": ("tools/common", "fs", "fs/supervise", "prefetch/sampler", "prefetch", "cache",
                    "shard", "shard/remote", "shard/base"),
}
# Files of one room that need each other, and why.  Anything else that goes round in a circle is refused.
CIRCLES = {
    ("prefetch/engine", "prefetch/prefetch", "prefetch/stream"):
        "engine.h is the inside of the doors prefetch.h and stream.h, whose functions need it",
    ("gpu_stage/backend", "gpu_stage/stage"): "a backend's batches are the door's, and a stage has a backend",
    ("tools/mkshard/pack", "tools/mkshard/publish"): "pack.h is the header of all parts of `mkshard pack`",
    ("shard/index", "shard/index_change"): "a file that changed has its blocks verified again, by the index",
}
# System headers that belong to one folder.
OWNED = {r"fuse.*": "fs", r"(curl|openssl)/.*": "shard/remote", r"liburing.*": "prefetch", r"(cuda|nccl|cublas|cufile).*": "gpu_stage"}
TOP_FOLDERS = {"fs", "shard", "cache", "prefetch", "gpu_stage", "tools", "tests", ".ci"}
TOP_FILES = {"meson.build", "meson_options.txt", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md",
             "SECURITY.md", "RELIABILITY.md", "LICENSE", ".gitignore", ".gitattributes", ".clang-format", ".clang-tidy",
             ".editorconfig"}

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.M)


def folder_of(path):
    """The room that a file lies in: the longest that is named."""
    return max((room for room in (*BELOW, "tests") if path.startswith(room + "/")), key=len, default=path.split("/")[0])


def stem(path):
    """A .c file, its header and its private header are one thing."""
    return path[:-2].removesuffix("_private")


def includes():
    for name in sources.c_files():
        for kind, target in INCLUDE.findall(sources.text(name)):
            yield name, kind, target


def test_includes_go_down_only():
    wrong = []
    for name, kind, target in includes():
        folder = folder_of(name)
        if kind == '"' and folder != "tests" and folder_of(target) not in (folder, *BELOW[folder]):
            wrong.append(f"{name} includes {target}")
    assert not wrong, "\n".join(wrong)


def test_nothing_includes_tests():
    wrong = [f"{n} includes {t}" for n, _, t in includes() if t.startswith("tests/") and not n.startswith("tests/")]
    assert not wrong, "\n".join(wrong)


def test_own_headers_are_included_from_the_root():
    known = set(sources.c_files())
    wrong = [f'{n} includes "{t}", which is no file of this tree (generated headers: use <>)'
             for n, kind, t in includes() if kind == '"' and t not in known]
    assert not wrong, "\n".join(wrong)


def test_libraries_stay_in_their_folder():
    wrong = []
    for name, kind, target in includes():
        for pattern, owner in OWNED.items():
            if kind == "<" and re.fullmatch(pattern, target) and folder_of(name) not in (owner, "tests"):
                wrong.append(f"{name} includes <{target}>, which only {owner}/ may")
    assert not wrong, "\n".join(wrong)


def test_top_level_holds_only_the_named_folders():
    wrong = [n for n in sources.files()
             if (n.split("/")[0] not in TOP_FOLDERS if "/" in n else n not in TOP_FILES)]
    assert not wrong, wrong


def circles():
    """Sets of files that include one another, by Tarjan's algorithm (SIAM J. Comput. 1972)."""
    graph, number, low, stack, found = {}, {}, {}, [], []
    for name, kind, target in includes():
        if kind == '"' and folder_of(name) != "tests" and stem(name) != stem(target):
            graph.setdefault(stem(name), set()).add(stem(target))

    def visit(node):
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in number:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == number[node]:
            at = stack.index(node)
            found.append(frozenset(stack[at:]))
            del stack[at:]

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return [circle for circle in found if len(circle) > 1]


def test_files_of_a_room_include_one_another_without_circles():
    found = circles()
    known = {frozenset(files) for files in CIRCLES}
    new = [sorted(circle) for circle in found if circle not in known]
    assert not new, f"these include one another: {new}"
    gone = [sorted(circle) for circle in known if circle not in found]
    assert not gone, f"these do so no more, take them out of CIRCLES: {gone}"


def test_every_source_file_stands_in_its_room_s_readme():
    missing = []
    for name in sources.c_files():
        room = folder_of(name)
        base = stem(name).rsplit("/", 1)[1]
        if room != "tests" and not re.search(rf"`{base}\.(\[ch\]|c|h)`", sources.text(f"{room}/README.md")):
            missing.append(name)
    assert not missing, f"no word of them in the README of their room: {missing}"


def test_every_folder_has_a_readme():
    folders = {folder_of(n) for n in sources.c_files()} | {"tools", "tests"}
    missing = [f for f in sorted(folders) if f"{f}/README.md" not in sources.files()]
    assert not missing, f"no README.md in {missing}"


def test_headers_say_what_they_are_for_and_guard_themselves():
    wrong = []
    for name in sources.c_files():
        if not name.endswith(".h"):
            continue
        guard = "DDPFS_" + re.sub(r"[^A-Za-z0-9]", "_", name).upper()
        if not sources.text(name).lstrip().startswith("/*"):
            wrong.append(f"{name}: no comment at its top")
        if f"#ifndef {guard}" not in sources.text(name) and f"#ifndef {guard.replace('_H', '')}_H" not in sources.text(name):
            wrong.append(f"{name}: no include guard {guard}")
    assert not wrong, "\n".join(wrong)


def test_sources_begin_with_a_sentence():
    wrong = [n for n in sources.c_files() if n.endswith(".c") and not re.match(r"/\*.*\*/\n/\*", sources.text(n))]
    assert not wrong, f"no comment after the licence that says what it is: {wrong}"
    opening = re.compile(r"/\*[^\n]*\*/\n/\*(.*?)\*/", re.S)
    unled = [n for n in sources.c_files() if n.endswith(".c") and folder_of(n) != "tests"
             and re.search(r'^#include "', sources.text(n), re.M)
             and not re.search(r"\w\.h\b", opening.match(sources.text(n)).group(1))]
    assert not unled, f"the comment at the top names no header to read first: {unled}"
