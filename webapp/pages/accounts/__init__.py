"""Pages of keys and projects, and of who did what."""
