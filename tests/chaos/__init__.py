"""The fault campaign: three hosts and a storage host on this machine, faults at random, and an audit at the end.

`make chaos MINUTES=10 SEED=1` runs it; docs/faults.md says what it does and what it has shown.
"""
