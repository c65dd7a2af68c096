"""What a job is made of: its options, the rows of its input, its requests, and its identity."""
