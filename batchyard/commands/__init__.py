"""The terminal commands, by noun. Each parses, makes one call and shows what came of it."""
