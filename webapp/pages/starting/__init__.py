"""Pages by which people begin: what one can do, a new batch, a new job of a recipe."""
