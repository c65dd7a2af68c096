"""Anthropic's dialect: its Message Batches are batches of /v1/messages, seen another way. No second path behind it."""
