#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks of MPI: each reads every file of its directory and the first gathers what all have seen.  mpi_read.py DIR REPORT"""

import hashlib
import json
import os
import sys

from mpi4py import MPI

root, report = sys.argv[1:]
mine = {}
for name in sorted(os.listdir(root)):
    with open(os.path.join(root, name), "rb") as f:
        mine[name] = hashlib.sha256(f.read()).hexdigest()
everything = MPI.COMM_WORLD.gather(mine)
if MPI.COMM_WORLD.rank == 0:
    with open(report, "w") as f:
        json.dump(everything, f)
