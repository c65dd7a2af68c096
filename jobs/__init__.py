"""Jobs: programs of a recipe over the items of an input, in one open batch for each stage."""
