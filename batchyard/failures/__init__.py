"""Why engines fail: the causes with their remedies, how processes end, and the reason that people read.

Nothing here knows an engine, a cluster or a batch.
"""
