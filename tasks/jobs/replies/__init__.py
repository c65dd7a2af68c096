"""Replies: what people and CI say to a job's items, checked against where each of them is."""
