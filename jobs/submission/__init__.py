"""New jobs: checks of what a client wants, its record, its outlook, and what it waits for."""
