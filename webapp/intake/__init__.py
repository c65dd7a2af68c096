"""Ways in beside files and batches of these: prompts in one step, files in parts, requests of open batches."""
