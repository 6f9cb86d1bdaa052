# SPDX-License-Identifier: Apache-2.0
"""Builds a web site out of the Markdown pages of the repository: python static_site.py OUTPUT

mkdocs (tests/requirements.txt) builds it.  No page is copied into the repository, and no page needs a change: the pages and
the files that they link to are copied into a folder of this run, with their paths.  So each link works as it does beside
the code."""

import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parent))
import sdist  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
# The pages for users, in reading order.  All other pages follow, by folder.
USERS = {
    "Begin": ["README.md", "tools/QUICK_START.md", "tools/INSTALL.md", "tools/HOW_IT_WORKS.md", "tools/MIGRATION.md"],
    "Train": ["tools/OPTIONS.md", "tests/trainers/README.md", "tools/ORDERS.md", "tools/RESUME.md", "tools/LAUNCHERS.md",
              "tools/STORES.md", "gpu_stage/README.md", "tools/kubernetes/README.md", "tools/systemd/README.md"],
    "Look": ["tools/MONITORING.md", "tools/TROUBLESHOOTING.md", "tools/MESSAGES.md", "tests/bench/README.md", "RELIABILITY.md",
             "SECURITY.md", "CHANGELOG.md"],
    "Format": ["shard/FORMAT.md", "shard/ORDER.md"],
}
CONFIG = {
    "site_name": "ddpfs",
    "theme": {"name": "mkdocs", "color_mode": "auto", "user_color_mode_toggle": True, "highlightjs": False},
    "use_directory_urls": False,
    "markdown_extensions": ["tables", "fenced_code", "sane_lists"],
    "plugins": ["search"],
    # tests/lint/test_links.py checks the pages, and tests/package/test_static_site.py what comes out.
    "validation": {"links": {"not_found": "info", "unrecognized_links": "info", "anchors": "warn"}, "omitted_files": "info"},
}
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")


def title(page):
    """The first heading."""
    found = re.search(r"^# +(.+)$", (ROOT / page).read_text(), re.M)
    return found.group(1).replace("`", "") if found else page


def copy(pages, files, docs):
    """Copies the pages, and the files that they link to."""
    for page in pages:
        text = (ROOT / page).read_text()
        for target, _ in LINK.findall(text):
            place = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
            if place in files and place not in pages:
                (docs / place).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / place, docs / place)
        (docs / page).parent.mkdir(parents=True, exist_ok=True)
        (docs / page).write_text(LINK.sub(lambda m: "](" + linked(page, m.group(1), files) + (m.group(2) or "") + ")", text))


def linked(page, target, files):
    """A link to a folder leads to its page, or to the page of the folder above it."""
    place = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    if re.match("[a-z]+:", target) or place in files:
        return target
    while place and f"{place}/README.md" not in files:
        place = posixpath.dirname(place)
    return posixpath.relpath(posixpath.join(place, "README.md"), posixpath.dirname(page) or ".")


def navigation(pages):
    nav = [{part: [{title(page): page} for page in listed if page in pages]} for part, listed in USERS.items()]
    named = {page for listed in USERS.values() for page in listed}
    return [*nav, {"Inside": [{title(page): page} for page in sorted(pages - named)]}]


def build(output):
    files = set(sdist.sources(ROOT))
    pages = {name for name in files if name.endswith(".md")}
    with tempfile.TemporaryDirectory() as work:
        docs = Path(work, "docs")
        docs.mkdir()
        copy(pages, files, docs)
        config = CONFIG | {"docs_dir": str(docs), "site_dir": str(output), "nav": navigation(pages)}
        Path(work, "mkdocs.yml").write_text(yaml.safe_dump(config, sort_keys=False))
        subprocess.run([sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-f", Path(work, "mkdocs.yml")],
                       check=True)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    build(Path(sys.argv[1]).resolve())
    print(Path(sys.argv[1]).resolve() / "index.html")
