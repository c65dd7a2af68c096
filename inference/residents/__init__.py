"""Resident engines: the detached Ray actors that keep an engine warm, and what stands in front of them."""
