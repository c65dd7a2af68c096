"""Recipe `cascade`: a small model answers the rows on which it agrees with a large one, with a guarantee."""
