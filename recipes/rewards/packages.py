"""Packages that some rewards need, and Batchyard does not install by itself."""

from __future__ import annotations

from batchyard import plugins

_EXTRAS = ("math", "bleu")
"""The rewards with an extra of their name."""


def require(reward: str) -> None:
    """Raise ConfigurationError, with the remedy, if the package of a reward is not installed."""
    if reward in _EXTRAS:
        plugins.require(reward, f"reward '{reward}'")
