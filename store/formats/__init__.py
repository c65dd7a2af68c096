"""The formats of files that two sides share: written and read here and nowhere else."""
