"""Pages of the machines: the models served, and their engines."""
