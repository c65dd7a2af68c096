"""Recipe `panel`: its program, its events, and what it leaves behind."""
