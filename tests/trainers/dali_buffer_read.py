#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA DALI's file reader with its shuffle buffer, over a tree of .bin files that hold their own paths.

dali_buffer_read.py ROOT OPTIONS REPORT: OPTIONS are readers.file's, as JSON; REPORT gets three epochs as JSON, the paths
in the order in which DALI gives the files out."""

import json
import sys
import time

import nvidia.dali as dali

BATCH = 50
root, options, report = sys.argv[1:]


@dali.pipeline_def(batch_size=BATCH, num_threads=1, device_id=None, seed=7)
def pipeline():
    return dali.fn.readers.file(file_root=root, file_filters=["*.bin"], name="reader", **json.loads(options))[0]


pipe = pipeline()
pipe.build()


def batch():
    time.sleep(0.02)  # a step of the trainer
    return [bytes(sample).decode() for sample in pipe.run()[0]]


epochs = [[path for _ in range(pipe.epoch_size("reader") // BATCH) for path in batch()] for _ in range(3)]
with open(report, "w") as f:
    json.dump({"dali": dali.__version__, "epochs": epochs}, f)
