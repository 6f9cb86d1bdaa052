# SPDX-License-Identifier: Apache-2.0
"""tools/grafana-dashboard.json: the metrics that it names exist, and its panels lie side by side."""

import json
import re
from itertools import combinations

import pytest

from helpers import datasets, tools

DASHBOARD = tools.ROOT / "tools" / "grafana-dashboard.json"


@pytest.fixture(scope="module")
def dashboard():
    return json.loads(DASHBOARD.read_text())


@pytest.fixture
def metrics(scratch, http_store, mount):
    """The text of `.ddpfs/metrics`, of a mount that has every kind of metric: of a store, with a tier."""
    source = scratch / "source"
    datasets.write_tree(source, classes=2, per_class=3)
    tools.mkshard("pack", source, http_store.root / "set")
    (scratch / "tier").mkdir()
    m = mount(f"{http_store.url}/set", f"rank=0,world=1,memory=64M,tier={scratch / 'tier'},tier_size=64M")
    return (m.path / ".ddpfs/metrics").read_text()


def expressions(dashboard):
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    found += [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    return found + [annotation["expr"] for annotation in dashboard["annotations"]["list"]]


def test_every_metric_exists(dashboard, metrics):
    there = set(re.findall(r"^(ddpfs_\w+)\{", metrics, re.M))
    named = {name for expression in expressions(dashboard) for name in re.findall(r"\bddpfs_\w+", expression)}
    assert len(named) > 15 and named <= there, named - there


def test_counters_are_rates_and_gauges_are_not(dashboard, metrics):
    for expression in expressions(dashboard):
        for name in re.findall(r"\bddpfs_\w+", expression):
            counter = f"# TYPE {name} counter" in metrics
            rates = re.findall(rf"(?:rate|increase)\({name}\b", expression)
            assert bool(rates) == counter or "label_values" in expression or "changes(" in expression, (name, expression)


def test_labels_are_those_of_the_metrics(dashboard, metrics):
    there = set(re.findall(r'(\w+)="', metrics.splitlines()[2]))
    for expression in expressions(dashboard):
        assert expression.count("(") == expression.count(")") and expression.count("{") == expression.count("}")
        assert set(re.findall(r'(\w+)=~?"', expression)) <= there


def test_panels_do_not_cover_each_other(dashboard):
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for a, b in combinations([panel["gridPos"] for panel in panels], 2):
        assert a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"] or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
