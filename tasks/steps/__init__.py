"""Post-processing steps."""
