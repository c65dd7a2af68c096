"""Requests without an engine: their bodies, context lengths, order and fingerprints."""
