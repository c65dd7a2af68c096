"""Persistent state: records in a database (SQLAlchemy) and artifacts in a content-addressed store (fsspec).

All SQL is here. Nothing here knows Flask, Celery or Ray.
"""
