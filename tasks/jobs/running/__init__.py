"""A job in progress whose items are rows: ticks send answers to programs, and make segments of their requests."""
