"""Packages beside the client: what they add, as registries of objects by name, and what installs a missing one."""

from collections.abc import Callable, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

from batchyard.errors import ConfigurationError
from batchyard.wording import suggestion

Entry = TypeVar("Entry")

SERVER = "batchyard-server"
"""The distribution of all that runs on a server; extra `server` installs it."""
EXTRAS: Mapping[str, tuple[str, str]] = {
    "bleu": ("sacrebleu", "sacreBLEU"),
    "lm-eval": ("lm_eval", "lm-evaluation-harness"),
    "math": ("math_verify", "Math-Verify"),
    "mcp": ("mcp", "the package mcp"),
    "oidc": ("authlib", "Authlib"),
    "optuna": ("optuna", "Optuna"),
    "otel": ("opentelemetry.exporter.otlp.proto.http", "the OpenTelemetry SDK"),
    "postgres": ("psycopg", "Psycopg"),
    "s3": ("s3fs", "s3fs"),
}
"""The module by which an extra is known to be installed, and the name of its package."""


def require_server(what: str = "BATCHYARD_URL names no server, and a local one") -> None:
    """Raise ConfigurationError, with the command that installs it, if the server is not installed here."""
    try:
        distribution(SERVER)  # a module `tasks` may be somebody else's
    except PackageNotFoundError:
        is_clone = (Path(__file__).parents[1] / "deploy" / "install.py").is_file()
        command = "make install" if is_clone else _installing("server")
        message = f"{what} needs the package {SERVER}, which is not installed here: {command}"
        raise ConfigurationError(message) from None


def require(extra: str, what: str) -> None:
    """Raise ConfigurationError, with the command that installs it, if the package of one of EXTRAS is missing."""
    module, name = EXTRAS[extra]
    try:
        missing = find_spec(module) is None
    except ModuleNotFoundError:  # of a module that it is in
        missing = True
    if missing:
        raise ConfigurationError(f"{what} needs {name}, which is not installed here: {_installing(extra)}")


def _installing(extra: str) -> str:
    return f"pip install 'batchyard[{extra}]'"


class Registry(Generic[Entry]):
    """Objects of one kind by name. A name is imported when it is looked up.

    Args:
        kind: the noun for messages: engine, step.
        group: the entry point group of packages, such as `batchyard.engines`.
        built_in: `module:attribute` by name, kept as entry points. A package cannot take such a name.
        checked: returns the name and the object that an entry point refers to. Raises TypeError with the reason
            if that is not of this kind.
    """

    def __init__(
        self, kind: str, group: str, built_in: Mapping[str, str], checked: Callable[[Any], tuple[str, Entry]]
    ) -> None:
        self._kind = kind
        self._group = group
        self.built_in = {name: EntryPoint(name, value, group) for name, value in built_in.items()}
        self._checked = checked

    @cached_property
    def added(self) -> dict[str, EntryPoint]:
        """Entry points of installed packages by name, read once per process."""
        added: dict[str, EntryPoint] = {}
        for entry in entry_points(group=self._group):
            package = _package(entry)
            if entry.name in self.built_in:
                raise ConfigurationError(
                    f"package {package}: entry point {entry.name!r} of group {self._group} takes the name of a "
                    f"built-in {self._kind}; give it another name, or uninstall {package}"
                )
            if entry.name in added:
                other = _package(added[entry.name])
                raise ConfigurationError(
                    f"packages {other} and {package}: both have an entry point {entry.name!r} of group {self._group}; "
                    "uninstall one of them"
                )
            added[entry.name] = entry
        return added

    def names(self) -> list[str]:
        """All names, the built-in ones first. Raises ConfigurationError as `added` does."""
        return [*self.built_in, *sorted(self.added)]

    def get(self, name: str) -> Entry:
        """Import and return the object of that name."""
        if name in self.added:
            return self._load(self.added[name])
        if name not in self.built_in:
            remedy = suggestion(name, self.names(), "{}")
            raise ConfigurationError(f"no {self._kind} is named {name!r}; {remedy}")
        return self._checked(self.built_in[name].load())[1]

    def load(self) -> list[Entry]:
        """Import and return every object, in the order of `names`. Raises ConfigurationError as `get` does."""
        return [self.get(name) for name in self.names()]

    def _load(self, entry: EntryPoint) -> Entry:
        package = _package(entry)
        where = f"package {package}: entry point '{entry.name} = {entry.value}' of group {self._group}"
        try:
            value = entry.load()
        except Exception as error:
            raise ConfigurationError(
                f"{where} cannot be loaded: {type(error).__name__}: {error}; repair or uninstall {package}"
            ) from error
        try:
            name, checked = self._checked(value)
        except TypeError as error:
            raise ConfigurationError(f"{where} {error}; repair or uninstall {package}") from error
        if name != entry.name:
            raise ConfigurationError(
                f"{where} names a {self._kind} that calls itself {name!r}; give both the same name, "
                f"or uninstall {package}"
            )
        return checked


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "(unknown)"
