"""The arrows between the folders go down only (ARCHITECTURE.md), and the tree holds what the layout names."""

import re

from lint import sources

# A folder may include its own headers and those of the folders named here.
MAY_INCLUDE = {
    "shard/base": {"shard/base"},
    "shard": {"shard", "shard/base"},
    "cache": {"cache", "shard", "shard/base"},
    "prefetch": {"prefetch", "cache", "shard", "shard/base"},
    "fs": {"fs", "prefetch", "cache", "shard", "shard/base"},
    "gpu_stage": {"gpu_stage", "prefetch", "cache", "shard", "shard/base"},
    "tools": {"tools", "fs", "gpu_stage", "prefetch", "cache", "shard", "shard/base"},
}
# System headers that belong to one folder.
OWNED = {r"fuse.*": "fs", r"liburing.*": "prefetch", r"(cuda|nccl|cublas|cufile).*": "gpu_stage"}
TOP_FOLDERS = {"fs", "shard", "cache", "prefetch", "gpu_stage", "tools", "tests", ".ci"}
TOP_FILES = {"meson.build", "meson_options.txt", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md",
             "SECURITY.md", "RELIABILITY.md", "LICENSE", ".gitignore", ".gitattributes", ".clang-format", ".clang-tidy",
             ".editorconfig"}

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.M)


def folder_of(path):
    return "shard/base" if path.startswith("shard/base/") else path.split("/")[0]


def includes():
    for name in sources.c_files():
        for kind, target in INCLUDE.findall(sources.text(name)):
            yield name, kind, target


def test_includes_go_down_only():
    wrong = []
    for name, kind, target in includes():
        folder = folder_of(name)
        if kind == '"' and folder != "tests" and folder_of(target) not in MAY_INCLUDE[folder]:
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
