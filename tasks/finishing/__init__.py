"""Finishing: result chunks become result files, and results are read."""
