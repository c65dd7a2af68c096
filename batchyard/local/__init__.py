"""The local stack: every process of a deployment on one machine, and the data folder it keeps its state in."""
