"""Recurring batches: schedules, and the inputs of their runs."""
