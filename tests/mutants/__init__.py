"""Faults, each of which breaks a promise of docs/design.md or docs/faults.md, and the tests that catch it.

`python -m tests.mutants` plants them in a copy of the tree, one at a time; `make mutants` does so before a release.
"""
