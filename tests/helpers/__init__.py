# SPDX-License-Identifier: Apache-2.0
"""Helpers shared by the Python tests: running the tools, mounting with cleanup that cannot be forgotten, datasets."""
