"""Checking a batch or job: its downloaded files against its manifest, and its answers against new ones."""
