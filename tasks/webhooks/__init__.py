"""Webhooks: delivery of events to the URLs of clients."""
