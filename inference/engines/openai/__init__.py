"""Engine `openai`: OpenAI-compatible servers that someone else runs."""
