"""Commands that ask about rows of files: `map`, `filter`, `match`, `embed`, `classify`, `rerank`, `transcribe`."""
