"""Webhooks: events on their way to clients."""
