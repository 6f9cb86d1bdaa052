# SPDX-License-Identifier: Apache-2.0
"""Mounted tests: what people see through a real mount."""
