"""Scheduling: which segment runs next, when each batch will be done, and how fast models are."""
