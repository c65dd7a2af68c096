"""The built-in rewards: an answer and its ground truth to a score. Pure functions."""

from batchyard import plugins

LINEAR = frozenset({"exact", "numeric", "regex", "gsm8k", "gsm8k-flexible", "choice", "f1", "rouge-1", "rouge-2"})
"""Those whose time grows with the answer's length alone, so that no other process has to judge them."""


def require_package(reward: str) -> None:
    """Raise ConfigurationError, with the remedy, if the package of a reward is not installed."""
    if reward in ("math", "bleu"):  # Batchyard does not install theirs by itself; an extra of their name does
        plugins.require(reward, f"reward '{reward}'")
