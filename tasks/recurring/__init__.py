"""Recurring batches: schedules, and what a run is made of."""
