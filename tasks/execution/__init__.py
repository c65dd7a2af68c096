"""Execution: runs one segment, from its lease to its last result chunk."""
