#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tf.data over a folder: list_files, shuffled, read_file in parallel.  tensorflow_read.py DIR REPORT"""

import hashlib
import json
import sys

import tensorflow as tf

root, report = sys.argv[1:]
tf.random.set_seed(1)
files = tf.data.Dataset.list_files(root + "/*/*", shuffle=True, seed=3)
data = files.map(lambda path: (path, tf.io.read_file(path)), num_parallel_calls=4, deterministic=True).prefetch(8)
seen = [[path.decode()[len(root) + 1:], hashlib.sha256(content).hexdigest()] for path, content in data.as_numpy_iterator()]
with open(report, "w") as f:
    json.dump(seen, f)
