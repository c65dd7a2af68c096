"""Backups: a folder with all rows of one moment, the content that these name, and a manifest, written last.

The rows are a SQLite file whatever database they came from, so that each backup can be restored to either. Any record's
table is in it; no module here knows one. What names content is known to store.deletion.garbage alone.
"""
