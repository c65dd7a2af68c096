"""Commands that ask about each row of a file: `map`, `filter`, `embed`, `classify`, `rerank`, `transcribe`."""
