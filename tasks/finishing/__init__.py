"""Finishing: merges result chunks into result files, runs steps, ends batches, and reads results for clients."""
