#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tf.data over a sorted list behind a shuffle buffer, three epochs.  tensorflow_buffer_read.py DIR SIZE REPORT"""

import json
import sys
import time

import tensorflow as tf

root, size, report = sys.argv[1:]
files = tf.data.Dataset.list_files(root + "/*/*", shuffle=False).shuffle(int(size), reshuffle_each_iteration=True)
data = files.map(lambda path: (path, tf.io.read_file(path)), num_parallel_calls=2).prefetch(2)
epochs = []
for epoch in range(3):
    seen = []
    for path, content in data.as_numpy_iterator():
        seen.append([path.decode()[len(root) + 1:], len(content)])
        if epoch == 0 and len(seen) == 96:
            time.sleep(2)  # a step of the trainer: the mount finds out meanwhile
    epochs.append(seen)
with open(report, "w") as f:
    json.dump({"tensorflow": tf.__version__, "epochs": epochs}, f)
