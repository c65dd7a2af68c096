"""The end of a job: its items in the order of the input, its journal and its other artifacts."""
