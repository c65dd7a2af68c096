"""A job of rows in progress: ticks send answers to programs and cut segments."""
