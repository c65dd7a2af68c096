"""Pages of keys and projects, of usage and budgets, and of who did what."""
