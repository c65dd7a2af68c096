"""The recipes, rewards, gates and tools of a deployment by name.

There are the built-in ones, those of installed packages (entry points `batchyard.recipes`, `batchyard.rewards`,
`batchyard.gates`, `batchyard.tools`), and those of the Python files in the folder BATCHYARD_RECIPES.
"""

import functools
import hashlib
import importlib
import inspect
import json
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

from batchyard.comparing import schemas
from batchyard.errors import ConfigurationError, RequestError
from batchyard.plugins import Registry
from batchyard.recipes import Gate, Recipe, Reward, Tool
from batchyard.recipes.kinds import undefined
from batchyard.settings import Settings
from batchyard.wording import quoted, suggestion
from recipes import mcp_servers
from recipes.gates import BUILT_IN as BUILT_IN_GATES
from recipes.rewards import graders

# fmt: off
COMMANDS = frozenset({
    "audit", "backup", "cancel", "chat", "classify", "config", "delete", "demo", "doctor", "download", "embed",
    "eval", "files", "filter", "job", "key", "list", "lm-eval", "logs", "map", "match", "migrate", "models", "open",
    "pause", "plan", "project", "rerank", "restore", "results", "resume", "retry", "run", "schedule", "set", "status",
    "submit", "tool", "top", "transcribe", "up", "usage", "verify", "webhook",
})
"""The names of the terminal's commands, which no recipe can take."""
# fmt: on
NAME = re.compile(r"[a-z][a-z0-9-]*")
TOOL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
"""What models may call."""
PACKAGE = "batchyard_recipes"
"""The package that the files of the folder are modules of: they may import each other by it."""

Entry: TypeAlias = Recipe[Any] | Reward | Gate | Tool
E = TypeVar("E", Recipe[Any], Reward, Gate, Tool)


@dataclass(frozen=True)
class RewardedRecipe:
    """A built-in recipe that looks rewards or tools up: `recipe_of` makes it for a catalogue."""

    name: str
    recipe_of: Callable[["Catalogue"], Recipe[Any]]


def _checked(*kinds: type[Any]) -> Callable[[Any], tuple[str, Any]]:
    def checked(value: Any) -> tuple[str, Any]:
        if not isinstance(value, kinds):
            raise TypeError(f"is no batchyard.recipes.{kinds[0].__name__}")
        return str(value.name), value

    return checked


RECIPES: Registry[Recipe[Any] | RewardedRecipe] = Registry(
    "recipe",
    "batchyard.recipes",
    {
        "agent": "recipes.agent.flow:agent",
        "batch": "recipes.batch:batch",
        "cascade": "recipes.cascade.recipe:cascade",
        "cascade-round": "recipes.cascade.flow:answered",
        "evaluate": "recipes.evaluate.flow:evaluate",
        "experiment": "recipes.experiment.recipe:experiment",
        "generate": "recipes.generate.recipe:generate",
        "generate-round": "recipes.generate.flow:drafts",
        "panel": "recipes.panel.flow:panel",
        "rank": "recipes.rank:rank",
        "refine": "recipes.refine.flow:refine",
        "rollout": "recipes.rollout.flow:rollout",
        "tune": "recipes.tune.recipe:tune",
    },
    _checked(Recipe, RewardedRecipe),
)
REWARDS: Registry[Reward] = Registry(
    "reward",
    "batchyard.rewards",
    {
        "exact": "recipes.rewards.comparing:exact",
        "numeric": "recipes.rewards.comparing:numeric",
        "regex": "recipes.rewards.comparing:regex",
        "gsm8k": "recipes.rewards.gsm8k:gsm8k",
        "gsm8k-flexible": "recipes.rewards.gsm8k:gsm8k_flexible",
        "math": "recipes.rewards.comparing:math",
        "choice": "recipes.rewards.choices:choice",
        "f1": "recipes.rewards.overlap:f1",
        "rouge-1": "recipes.rewards.overlap:rouge_1",
        "rouge-2": "recipes.rewards.overlap:rouge_2",
        "rouge-l": "recipes.rewards.overlap:rouge_l",
        "bleu": "recipes.rewards.overlap:bleu",
        "json-fields": "recipes.rewards.comparing:json_fields",
    },
    _checked(Reward),
)
GATES: Registry[Gate] = Registry("gate", "batchyard.gates", {}, _checked(Gate))
TOOLS: Registry[Tool] = Registry("tool", "batchyard.tools", {}, _checked(Tool))


class Catalogue:
    """What jobs of this deployment may name."""

    def __init__(self, reserved: Iterable[str] = COMMANDS) -> None:
        self.recipes: dict[str, Recipe[Any]] = {}
        self.rewards: dict[str, Reward] = {}
        self.gates: dict[str, Gate] = {}
        self.tools: dict[str, Tool] = {}
        self._reserved = frozenset(reserved)
        self._places: dict[int, str] = {}
        self._sha256: dict[str, str] = {}

    def recipe(self, name: str, param: str = "recipe") -> Recipe[Any]:
        """Return the recipe of that name. Raises RequestError, with `param`, for an unknown one."""
        return _named("recipe", self.recipes, name, param)

    def reward(self, name: str, param: str = "options.reward") -> Reward:
        """Return the reward of a name or of a grader's JSON. Raises RequestError with `param`."""
        if name.startswith("{"):
            try:
                return graders.reward(name)
            except ValueError as error:
                raise RequestError(f"The grader cannot be used: {error}.", code="invalid_grader", param=param) from None
        return _named("reward", self.rewards, name, param)

    def gate(self, name: str, param: str = "options.gates") -> Gate:
        """Return the gate of that name. Raises RequestError, with `param`, for an unknown one."""
        return _named("gate", self.gates, name, param)

    def tool(self, name: str, param: str = "options.tools") -> Tool:
        """Return the tool of that name. Raises RequestError, with `param`, for an unknown one."""
        return _named("tool", self.tools, name, param)

    def reward_for(self, data_source: str) -> Reward | None:
        """Return the reward of a data source, None if no reward is for that."""
        return next((reward for reward in self.rewards.values() if data_source in reward.data_sources), None)

    def sha256(self, recipe: str) -> str:
        """Return the hash of the files that define a recipe, as they were when this process imported them.

        What models are told of tools is part of it, if the recipe's options name tools: its requests depend on that.
        """
        entry = self.recipe(recipe)
        if "tools" not in entry.options.model_fields:
            return self._sha256[entry.name]
        told = [(tool.name, tool.description, dict(tool.parameters)) for _, tool in sorted(self.tools.items())]
        return hashlib.sha256(json.dumps([self._sha256[entry.name], told], sort_keys=True).encode()).hexdigest()

    def place(self, entry: Entry) -> str:
        """Return file and line of an entry's function, without the folder."""
        return Path(self._places[id(entry)]).name

    def add(self, entry: Entry) -> None:
        """Take in an entry. Raises ConfigurationError for a name or a data source that is taken or cannot be."""
        if id(entry) in self._places:  # a file has imported it from another one
            return
        place, file = _place(entry)
        kind, entries = self._of_kind(entry)

        def refused(why: str) -> ConfigurationError:
            return ConfigurationError(f"{place}: {why}")

        pattern, characters = (
            (TOOL_NAME, "at most 64 letters, digits, hyphens and underscores")
            if kind == "tool"
            else (NAME, "lower-case letters, digits and hyphens")
        )
        if not pattern.fullmatch(entry.name):
            raise refused(f"{quoted(entry.name)} cannot be the name of a {kind}; take {characters}, a letter first")
        if kind == "recipe" and entry.name in self._reserved:
            raise refused(f"the name {entry.name!r} is that of a command of the terminal; choose another")
        if entry.name in entries:
            other = self._places[id(entries[entry.name])]
            raise refused(f"the name {entry.name!r} is taken by the {kind} of {other}; choose another")
        if isinstance(entry, Reward):
            for data_source in entry.data_sources:
                if taken := self.reward_for(data_source):
                    raise refused(f"reward {taken.name!r} is for data source {data_source!r}, too; it can have one")
        if isinstance(entry, Tool):
            try:
                schemas.schema_of(dict(entry.parameters))
            except ValueError as error:
                raise refused(f"the parameters of tool {entry.name!r} cannot be used: {error}") from None
        if isinstance(entry, Recipe):
            self._sha256[entry.name] = _sha256_of(Path(file))
        entries[entry.name] = entry
        self._places[id(entry)] = place

    def _of_kind(self, entry: Entry) -> tuple[str, dict[str, Any]]:
        if isinstance(entry, Recipe):
            return "recipe", self.recipes
        if isinstance(entry, Tool):
            return "tool", self.tools
        return ("reward", self.rewards) if isinstance(entry, Reward) else ("gate", self.gates)


def load(folder: str | None, reserved: Iterable[str] = COMMANDS) -> Catalogue:
    """Import all entries: built-in, of packages, of the folder. Raises ConfigurationError with the place."""
    catalogue = Catalogue(reserved)
    entries: list[Entry] = [*BUILT_IN_GATES.values(), *REWARDS.load(), *GATES.load(), *TOOLS.load()]
    for entry in entries:
        catalogue.add(entry)
    for recipe in RECIPES.load():
        catalogue.add(recipe.recipe_of(catalogue) if isinstance(recipe, RewardedRecipe) else recipe)
    for tool in mcp_servers.tools_of(Path(folder)) if folder else ():
        catalogue.add(tool)
    for module in _modules(folder) if folder else ():
        for value in list(vars(module).values()):
            if isinstance(value, Recipe | Reward | Gate | Tool) and value.function is not undefined:
                catalogue.add(value)
    return catalogue


_LOADING = threading.Lock()
loaded = functools.cache(load)
"""Return the catalogue of a folder as this process has loaded it first."""


def catalogue(settings: Settings) -> Catalogue:
    """Return the catalogue of this process. Raises ConfigurationError as `load` does."""
    with _LOADING:  # two threads would import the files twice
        return loaded(settings.recipes)


def _modules(folder: str) -> list[ModuleType]:
    path = Path(folder).resolve()
    if not path.is_dir():
        raise ConfigurationError(f"BATCHYARD_RECIPES={folder}: there is no such folder")
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
    package = ModuleType(PACKAGE)
    package.__path__ = [str(path)]
    sys.modules[PACKAGE] = package
    importlib.invalidate_caches()
    return [_module(file) for file in sorted(path.glob("[!.]*.py"))]


def _module(file: Path) -> ModuleType:
    try:
        return importlib.import_module(f"{PACKAGE}.{file.stem}")
    except Exception as error:
        line = error.lineno if isinstance(error, SyntaxError) and error.filename == str(file) else None
        frames = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        line = line or (frames[-1] if frames else None)
        where = f"{file}, line {line}" if line else f"{file}"
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ConfigurationError(
            f"{where}: {type(error).__name__}: {reason}; repair the file or take it out of BATCHYARD_RECIPES"
        ) from error


def _place(entry: Entry) -> tuple[str, str]:
    """Return the place in words, and the file, where the function of an entry stands."""
    if isinstance(entry.function, mcp_servers.RemoteTool):
        return f"{entry.function.file}", f"{entry.function.file}"
    function = inspect.unwrap(entry.function)
    code = getattr(function, "__code__", None)
    if code is None:  # an object that can be called
        module = sys.modules[type(function).__module__]
        return f"{module.__file__}", f"{module.__file__}"
    return f"{code.co_filename}, line {code.co_firstlineno}", code.co_filename


def _sha256_of(file: Path) -> str:
    """Return the hash of a recipe's file, or of the folder of a built-in one."""
    folder = file.parent
    files = sorted(folder.glob("*.py")) if folder.parent == Path(__file__).parent else [file]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _named(kind: str, entries: Mapping[str, E], name: str, param: str) -> E:
    entry = entries.get(name)
    if entry is None:
        message = f"No {kind} is named {quoted(name)}. {suggestion(name, entries, sentence=True)}"
        raise RequestError(message, code=f"{kind}_not_found", param=param)
    return entry
