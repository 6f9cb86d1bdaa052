# SPDX-License-Identifier: Apache-2.0
"""stage_reader.py DATASET FIRST: reads three epochs by libddpfs_stage; after FIRST batches it says so and waits for a line.
Prints one line of JSON: {"samples": [[path, SHA-256 of the bytes], ...], "error": errno or null, "text": its sentence}."""

import hashlib
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "gpu_stage/python"))
import ddpfs  # noqa: E402


def main():
    dataset, first = sys.argv[1], int(sys.argv[2])
    samples, error, text, batches = [], None, "", 0

    def halt():
        if batches == first:
            print("so far", flush=True)
            sys.stdin.readline()

    stage = ddpfs.Stage(dataset, batch=16, order="full", memory="48M", quarantine="")
    try:
        stage.set_epoch(0)
        halt()
        for _ in range(3):
            for batch in stage:
                samples += [[batch.path(i), hashlib.sha256(bytes(batch[i])).hexdigest()] for i in range(len(batch))]
                batches += 1
                halt()
    except OSError as e:
        error, text = e.errno, str(e)
    print(json.dumps({"samples": samples, "error": error, "text": text}), flush=True)


main()
