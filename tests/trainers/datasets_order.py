#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The orders that Hugging Face's Dataset.shuffle gives to N rows.  datasets_order.py N SEED...

Prints one order a seed and the library's version as JSON."""

import json
import sys

import datasets

rows, *seeds = map(int, sys.argv[1:])
numbered = datasets.Dataset.from_dict({"i": list(range(rows))})
print(json.dumps({"version": datasets.__version__, "orders": [numbered.shuffle(seed=seed)["i"][:] for seed in seeds]}))
