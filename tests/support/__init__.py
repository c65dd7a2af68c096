"""Helpers of several test files: stacks, servers, receivers, rows."""
