#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The order in which DALI's file reader opens files that hold their own names.  dali_order.py LIST OPTIONS

LIST: a file with the paths, one a line.  OPTIONS: readers.file's, as JSON.  Prints DALI's version and as many opens as
the list has files, as JSON."""

import json
import sys
from pathlib import Path

import nvidia.dali as dali

files, options = Path(sys.argv[1]).read_text().splitlines(), json.loads(sys.argv[2])


@dali.pipeline_def(batch_size=50, num_threads=1, device_id=None)
def read():
    return dali.fn.readers.file(files=files, **options)[0]


pipe = read(prefetch_queue_depth=1)
pipe.build()
opens = [bytes(sample).decode() for _ in range(len(files) // 50) for sample in pipe.run()[0]]
print(json.dumps({"version": dali.__version__, "opens": opens}))
