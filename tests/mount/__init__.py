"""Mounted tests: what people see through a real mount."""
