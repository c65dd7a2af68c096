"""The command line: one module per noun. A command parses, makes one call and prints the result."""
