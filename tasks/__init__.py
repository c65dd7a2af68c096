"""When things happen: Celery tasks for validation, dispatch, segments, finishing and housekeeping.

A task is one call into a module here; tasks take ids, never payloads, and are safe to run twice: the records decide.
"""
