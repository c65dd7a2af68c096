"""Why engines fail: the causes with their remedies, how processes end, and the reason that people read."""
