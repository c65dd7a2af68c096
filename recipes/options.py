"""What options of several recipes have in common: sampling, gates, models by name, and keys that are paths."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from batchyard import config
from batchyard.errors import BatchyardError
from batchyard.recipes import BASIC, field_of
from batchyard.wording import PLACE, cut, suggestion
from recipes import extracts
from recipes.gates import parse
from recipes.registry import Catalogue
from recipes.rewards import require_package


class Sampling(BaseModel):
    """Sampling parameters of every request."""

    model_config = ConfigDict(extra="forbid")
    temperature: float = Field(1.0, ge=0, le=100, json_schema_extra=BASIC)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    max_tokens: int | None = Field(None, ge=1, json_schema_extra=BASIC)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: str | list[str] | None = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0)

    def parameters(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


SamplingOption: TypeAlias = Annotated[
    Sampling,
    Field(default_factory=Sampling, description="Temperature, top_p, max_tokens and the like", json_schema_extra=BASIC),
]


class GreedySampling(Sampling):
    """Sampling parameters, at temperature 0 unless it is set."""

    temperature: float = Field(0.0, ge=0, le=100, json_schema_extra=BASIC)


def column_of(columns: Mapping[str, Any], path: str) -> Any:
    """Return the value of a row at a path, None if it has none."""
    try:
        return field_of(columns, path)
    except KeyError:
        return None


@contextmanager
def option(path: str) -> Iterator[None]:
    """Make an error a ValueError whose message begins with the path of an option."""
    try:
        yield
    except BatchyardError as error:
        raise ValueError(f"{path}: {error.message}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def check_extract(path: str, how: str | None) -> None:
    """Raise ValueError, with the path of the option, for an extract that cannot be."""
    if how is not None:
        with option(path):
            extracts.check(how)


def check_reward(path: str, name: str, rewards: Catalogue) -> None:
    """Raise ValueError, with the path of the option, for a reward or a grader that cannot be used."""
    with option(path):
        rewards.reward(name)
        require_package(name)


def as_model(value: Any) -> Any:
    """Return options of a model that were given as its name alone."""
    return {"model": value} if isinstance(value, str) else value


def as_gate(value: Any) -> Any:
    """Return options of a gate that were given as `name:value`."""
    if not isinstance(value, str):
        return value
    name, parameter = parse(value)
    return {"gate": name, "value": parameter}


def check_places(path: str, template: str, places: Sequence[str]) -> None:
    """Raise ValueError, with the path of the option, for a template that names a place in braces that is none."""
    for name in PLACE.findall(template):
        if name not in places:
            remedy = suggestion(name, places, "{{{}}}", sentence=True)
            raise ValueError(f"{path}: There is no place {{{cut(name, 100)}}}. {remedy}")


def nested(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return options whose keys are paths as nested options, those of later layers over those of earlier ones."""
    merged: dict[str, Any] = {}
    for values in layers:
        for key, value in values.items():
            *above, last = config.path(key)
            inner: dict[str, Any] = {last: value}
            for name in reversed(above):
                inner = {name: inner}
            merged = _merged(merged, inner)
    return merged


def _merged(below: Any, above: Any) -> Any:
    """Return `above` over `below`: mappings are merged key by key, everything else is replaced."""
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    return {**below, **{key: _merged(below.get(key), value) for key, value in above.items()}}
