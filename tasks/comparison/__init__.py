"""Comparison of an experiment's children: statistics by item, expectations, reports and plots, without a store."""
