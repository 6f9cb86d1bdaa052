#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes scikit-learn's digits as samples of one length: make_digits.py OUT.

A sample is OUT/{train,val}/<digit>/<digit>_<number>.bin: the label and 64 grey pixels, 65 bytes.  Every run writes the same
bytes.  Every fifth sample of a class is for validation."""

import sys
from pathlib import Path

from sklearn.datasets import load_digits


def write(out):
    digits = load_digits()
    seen = [0] * 10
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target)):
        part = "val" if seen[label] % 5 == 4 else "train"
        seen[label] += 1
        path = Path(out) / part / str(label) / f"{label}_{number:04d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([label]) + (pixels * (255 / 16)).round().astype("uint8").tobytes())


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: make_digits.py OUT")
    write(sys.argv[1])
