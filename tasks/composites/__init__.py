"""Composites: jobs whose items are other jobs, their children."""
