"""What arrives piece by piece: parts of files, requests of open batches, and the segments that these become."""
