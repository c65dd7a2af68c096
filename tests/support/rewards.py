"""What the rewards of a deployment without recipes of its own say of an answer."""

from __future__ import annotations

from typing import Any

from batchyard.recipes import Scored, scored
from recipes import registry

CATALOGUE = registry.load(None)


def outcome(name: str, answer: str, ground_truth: Any = "", /, **columns: Any) -> Scored:
    """The score of an answer by a reward's name or a grader's JSON."""
    return scored(CATALOGUE.reward(name)("any", answer, ground_truth, columns))
