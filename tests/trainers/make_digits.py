#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes scikit-learn's digits, 1,797 scans of handwritten digits, as an image folder of PNG files:

    OUT/train/<digit>/<digit>_<number>.png     four fifths of each class
    OUT/val/<digit>/<digit>_<number>.png       the rest

The same bytes in every run."""

import sys
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits


def write(out):
    """Writes the image folder below `out` and returns (train files, val files)."""
    digits = load_digits()
    counts = {"train": 0, "val": 0}
    seen = [0] * 10
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target)):
        part = "val" if seen[label] % 5 == 4 else "train"
        seen[label] += 1
        path = Path(out) / part / str(label) / f"{label}_{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        grey = (pixels * (255 / 16)).round().astype("uint8")  # load_digits counts 0..16
        Image.fromarray(grey).save(path, optimize=False)
        counts[part] += 1
    return counts["train"], counts["val"]


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: make_digits.py OUT")
    train, val = write(sys.argv[1])
    print(f"{train} training and {val} validation images in {sys.argv[1]}")
