"""The fault campaign: three hosts and a storage host on this machine, faults at random, and an audit at the end.

`make chaos MINUTES=10 SEED=1` runs it, `make chaos-jobs KILLS=100` one of kills over a job on a stack of its own.
docs/faults.md says what they do and what they have shown.
"""
