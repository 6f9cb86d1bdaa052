# SPDX-License-Identifier: Apache-2.0
"""The web site that tools/package/static_site.py builds: it has every page, and each of its links leads somewhere."""

import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag

import pytest

from helpers.tools import ROOT
from lint import sources


class Page(HTMLParser):
    """What a page links to, and the anchors that it has."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors |= {given[key] for key in ("id", "name") if given.get(key)}
        self.links += [given[key] for key in ("href", "src") if given.get(key)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install -r tests/requirements.txt")
    output = tmp_path_factory.mktemp("site") / "site"
    done = subprocess.run([sys.executable, ROOT / "tools/package/static_site.py", output], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return output


def test_every_page_is_there_and_in_the_navigation(site):
    pages = [name for name in sources.files() if name.endswith(".md")]
    made = [name.removesuffix("README.md") + "index.html" if name.endswith("README.md") else name[:-3] + ".html"
            for name in pages]
    assert not [name for name in made if not (site / name).is_file()]
    start = {urldefrag(link)[0] for link in Page((site / "index.html").read_text()).links}
    assert not [name for name in made if name not in start and name != "index.html"]


def test_links_lead_somewhere(site):
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    wrong, seen = [], 0
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for link in page.links:
            target, anchor = urldefrag(unquote(link))
            if "//" in target or target.startswith("data:"):
                continue
            seen += 1
            place = (path.parent / target).resolve() if target else path
            place = place / "index.html" if place.is_dir() else place
            if not place.is_file() or (anchor and place in pages and anchor not in pages[place].anchors):
                wrong.append(f"{path.relative_to(site)}: {link}")
    assert seen > 500 and not wrong, "\n".join(wrong)


def test_nothing_comes_from_elsewhere(site):
    """A reader without the network sees all of it."""
    for path in site.rglob("*.html"):
        page = path.read_text()
        assert '<script src="http' not in page and '<link href="http' not in page, path
