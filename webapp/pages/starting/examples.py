"""/begin: what one can do here, as cards of `examples/start.toml`, each a form that is filled in; and their files."""

import functools
import tomllib
from pathlib import Path
from typing import Any, Self

import flask
import yaml
from flask import Blueprint
from flask.typing import ResponseReturnValue
from pydantic import BaseModel, ConfigDict, Field, model_validator

from batchyard.errors import RequestError
from batchyard.models import served_by_name
from batchyard.wording import quoted
from store.artifacts import ArtifactWriter
from tasks.context import AppContext
from webapp.pages.trying import endpoint_of
from webapp.port import port
from webapp.requests import current_context

routes = Blueprint("start", __name__, url_prefix="/begin")

_BESIDE = Path(__file__).parents[3] / "examples"
FOLDER = _BESIDE if _BESIDE.is_dir() else Path("examples").resolve()
"""Beside the package, as in a clone; else in the working folder, as in the image of a container."""


class Card(BaseModel):
    """Something that one can do, with a form that is filled in: `fields` of a batch, or a job and its `options`."""

    model_config = ConfigDict(extra="forbid")
    name: str
    title: str
    text: str
    input: str
    fields: dict[str, str] = Field(default_factory=dict)
    recipe: str | None = None
    options: str | None = None
    more: bool = False
    command: str
    docs: str

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.recipe is None) != (self.options is None) or (self.recipe is None) != bool(self.fields):
            raise ValueError("a card has either 'fields', or 'recipe' and 'options'")
        return self

    def values(self) -> dict[str, Any]:
        loaded: dict[str, Any] = yaml.safe_load((FOLDER / str(self.options)).read_text("utf-8"))
        # The terminal takes the name of the input from the file, too.
        return {name: value for name, value in loaded.items() if name not in ("input", "data")}


@functools.cache
def cards() -> dict[str, Card]:
    file = FOLDER / "start.toml"
    if not file.is_file():
        return {}
    entries = [Card.model_validate(entry) for entry in tomllib.loads(file.read_text("utf-8"))["card"]]
    return {card.name: card for card in entries}


def card(name: str) -> Card:
    """Return a card. Raises RequestError if there is none of this name."""
    if name not in cards():
        raise RequestError(f"There is no example {quoted(name)}.", code="invalid_value", param="example")
    return cards()[name]


def inputs() -> list[str]:
    return list(dict.fromkeys(card.input for card in cards().values()))


def stored(context: AppContext, name: str) -> ArtifactWriter:
    """Store the content of an input. Raises RequestError if there is none of this name."""
    if name not in inputs():
        raise RequestError(f"There is no example {quoted(name)}.", code="invalid_value", param="stored")
    with context.artifacts.create() as content:
        content.write((FOLDER / name).read_bytes())
    return content


@routes.get("")
def show() -> ResponseReturnValue:
    recipes = port().recipes()
    names = {None, *(recipe.name for recipe in recipes)}
    return flask.render_template(
        "start.html",
        cards=[card for card in cards().values() if card.recipe in names],
        tryable=[name for name, spec in served_by_name(current_context().models).items() if endpoint_of(spec)],
        recipes=recipes,
    )
