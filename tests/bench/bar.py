# SPDX-License-Identifier: Apache-2.0
"""A figure beside its bar, as tests/bench/bar.h prints it."""


def show(what, figure, limit, unit, above=False):
    met = figure >= limit if above else figure <= limit
    print(f"bar    {what:44} {figure:9.2f} {unit:6}  {'at least' if above else 'at most'} {limit:g}: "
          f"{'met' if met else 'NOT MET'}", flush=True)
