"""The end of a job: its items in input order, its journal and its artifacts."""
