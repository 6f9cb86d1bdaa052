#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA DALI's file reader on the CPU, as two shards, decoded there too.  dali_read.py DIR REPORT"""

import hashlib
import json
import sys

import numpy as np
from nvidia.dali import fn, pipeline_def

root, report = sys.argv[1:]


@pipeline_def(batch_size=16, num_threads=2, device_id=None, seed=7)
def pipeline(shard, dont_use_mmap):
    data, labels = fn.readers.file(file_root=root, random_shuffle=True, shard_id=shard, num_shards=2,
                                   name="reader", dont_use_mmap=dont_use_mmap, pad_last_batch=False)
    return data, labels, fn.decoders.image(data, device="cpu")


out = {}
for dont_use_mmap in (False, True):
    shards = []
    for shard in range(2):
        p = pipeline(shard, dont_use_mmap)
        p.build()
        files = p.epoch_size("reader")
        size = files * (shard + 1) // 2 - files * shard // 2
        seen = []
        while len(seen) < size:
            for data, label, image in zip(*p.run()):
                seen.append([hashlib.sha256(np.array(data)).hexdigest(), int(np.array(label)[0]),
                             hashlib.sha256(np.array(image)).hexdigest()])
        shards.append(seen[:size])
    out["read" if dont_use_mmap else "mmap"] = shards
with open(report, "w") as f:
    json.dump(out, f)
