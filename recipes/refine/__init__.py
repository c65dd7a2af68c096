"""Recipe `refine`: its program, its options, its decisions, its votes, and what it leaves behind."""
