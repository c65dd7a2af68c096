"""Scheduling: dispatch policy, forecasts and deadlines, measured throughput."""
