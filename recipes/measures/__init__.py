"""Measures: metrics of scores and texts, as pure functions with the source of their definition."""
