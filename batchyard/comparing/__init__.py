"""Comparing answers with what was expected: numbers by value, texts, JSON, and regular expressions."""
