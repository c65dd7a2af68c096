"""Whole stacks: faults, deployment files, documents, examples."""
