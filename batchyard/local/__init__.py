"""The local stack: a deployment's processes on one machine, and their data folder."""
