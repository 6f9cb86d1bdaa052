# SPDX-License-Identifier: Apache-2.0
"""Every link of a Markdown page to a file, folder or heading of the repository leads somewhere.  Addresses of the web are
not asked."""

import posixpath
import re

from lint import sources

LINK = re.compile(r"(?<!!)\[[^\]\n]*(?:\n[^\]\n]*)?\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)|<img[^>]*src=\"([^\"]+)\"")


def prose(name):
    """A page without what is code."""
    text = re.sub(r"^(```|~~~).*?^\1[^\n]*$", "", sources.text(name), flags=re.S | re.M)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(name):
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^(```|~~~).*?^\1[^\n]*$", "", sources.text(name), flags=re.S | re.M)
    seen, found = {}, set()
    for heading in re.findall(r"^#{1,6} +(.*?) *#*$", text, re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        n = seen[slug] = seen.get(slug, -1) + 1
        found.add(f"{slug}-{n}" if n else slug)
    return found


def test_links_lead_somewhere():
    files = set(sources.files())
    folders = {posixpath.dirname(f) for f in files} | {""}
    folders |= {posixpath.dirname(f) for f in folders}
    wrong, seen = [], 0
    for page in (f for f in files if f.endswith(".md")):
        for target in (next(filter(None, groups)) for groups in LINK.findall(prose(page))):
            if re.match(r"[a-z]+:", target):
                continue
            seen += 1
            path, _, anchor = target.partition("#")
            place = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
            if place not in files and place.rstrip("/") not in folders:
                wrong.append(f"{page}: {target}: there is no {place}")
            elif anchor and (place not in files or anchor not in anchors(place)):
                wrong.append(f"{page}: {target}: there is no heading #{anchor} in {place}")
    assert not wrong, "\n".join(wrong)
    assert seen > 50, "no links found: this test looks at nothing"
