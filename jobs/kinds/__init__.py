"""The kinds of recipes: what a job of each checks, does in a tick and leaves behind."""
