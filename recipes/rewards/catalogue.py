"""The rewards and tools of a deployment, as a recipe sees them, and a recipe that needs them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from batchyard.recipes import Gate, Recipe, Reward, Tool


class RewardCatalogue(Protocol):
    """The rewards, gates and tools that jobs may name, by their names."""

    @property
    def gates(self) -> Mapping[str, Gate]: ...
    @property
    def rewards(self) -> Mapping[str, Reward]: ...
    @property
    def tools(self) -> Mapping[str, Tool]: ...

    def reward(self, name: str) -> Reward:
        """Return the reward of a name or of a grader's JSON. Raises RequestError if it cannot be used."""

    def reward_for(self, data_source: str) -> Reward | None:
        """Return the reward of a data source, None if no reward is for that."""


@dataclass(frozen=True)
class RewardedRecipe:
    """A built-in recipe that looks rewards or tools up: `recipe_of` makes it for a catalogue."""

    name: str
    recipe_of: Callable[[RewardCatalogue], Recipe[Any]]
