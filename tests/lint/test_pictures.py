# SPDX-License-Identifier: Apache-2.0
"""Pictures of the pages are small and shown, and the figures of README.md are those of tests/bench/README.md."""

import importlib.machinery
import importlib.util
import re

import pytest

from lint import sources

PICTURES = [name for name in sources.files() if name.startswith("tools/pictures/") and name.endswith((".svg", ".png"))]


def test_pictures_are_small_and_shown():
    pages = "".join(sources.text(name) for name in sources.files() if name.endswith(".md"))
    assert len(PICTURES) > 5
    assert not [name for name in PICTURES if (sources.ROOT / name).stat().st_size > 100_000]
    assert not [name for name in PICTURES if f"pictures/{name.rsplit('/')[-1]})" not in pages]


def test_the_chart_shows_the_figures_of_the_benchmarks():
    pytest.importorskip("PIL", reason="Pillow is not installed: pip install -r tests/requirements.txt")
    loader = importlib.machinery.SourceFileLoader("make_pictures", str(sources.ROOT / "tools/pictures/make"))
    make = importlib.util.module_from_spec(importlib.util.spec_from_loader("make_pictures", loader))
    loader.exec_module(make)
    assert len(make.rates()) > 5
    assert sources.text("tools/pictures/rates.svg") == make.chart(), "run tools/pictures/make rates.svg"


def test_the_readme_has_the_figures_of_the_benchmarks():
    short = sources.text("README.md").partition("## How fast")[2].partition("\n## ")[0]
    figures = re.findall(r"\d+,\d{3}|\d\.\d\d", "".join(line for line in short.splitlines() if line.startswith("|")))
    bench = sources.text("tests/bench/README.md")
    assert len(figures) >= 8 and not [figure for figure in figures if figure not in bench]
