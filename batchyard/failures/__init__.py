"""Why engines fail: the causes with their remedies, and the reason that people read.

Nothing here knows an engine, a cluster or a batch.
"""
