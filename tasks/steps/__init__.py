"""Post-processing steps, which run once all answers of a batch are there. Packages add more by entry points."""
