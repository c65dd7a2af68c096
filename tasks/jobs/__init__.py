"""Jobs: the programs of a recipe over the items of an input, in batches that stay open while their stage lasts."""
