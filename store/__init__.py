"""What lasts: records in a database (SQLAlchemy) and artifacts in a content-addressed store (fsspec).

SQL stands here and nowhere else. Nothing here knows Flask, Celery or Ray.
"""
