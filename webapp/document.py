"""The OpenAPI document, made from the models of webapp.wire: /openapi.json, and /docs to browse it.

Each route declares what it takes and answers with `operation`; the routes themselves read their requests, after the
caller is known.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from importlib import resources
from types import MappingProxyType
from typing import Any, ParamSpec

import flask
from flask import Blueprint
from flask.typing import ResponseReturnValue
from pydantic import BaseModel
from spectree import Response, SecurityScheme, SpecTree
from spectree.models import SecureType, SecuritySchemeData

from batchyard import __version__
from webapp import wire

routes = Blueprint("document", __name__)
P = ParamSpec("P")

_tree = SpecTree(
    "flask",
    annotations=False,
    mode="strict",
    path="docs",
    title="Batchyard",
    version=__version__,
    description="OpenAI's Files and Batches, answered on your own machines. Keys are sent as Bearer tokens.",
    naming_strategy=lambda model: model.__name__,
    nested_naming_strategy=lambda _parent, child: child,
    security_schemes=[SecurityScheme(name="key", data=SecuritySchemeData(SecureType.HTTP, scheme="bearer"))],
    security={"key": []},
    validation_error_status=400,
    validation_error_model=wire.ErrorObject,
)
# What spectree has no word for, by operation.
_media_types: dict[str, str] = {}
_optional_bodies: set[str] = set()


def operation(
    answer: type[BaseModel] | None,
    *,
    status: int = 200,
    refusals: tuple[int, ...] = (),
    media_type: str | None = None,
    public: bool = False,
    others: Mapping[int, type[BaseModel]] = MappingProxyType({}),
    query: type[BaseModel] | None = None,
    json: type[BaseModel] | None = None,
    form: type[BaseModel] | None = None,
    headers: type[BaseModel] | None = None,
    body_optional: bool = False,
) -> Callable[[Callable[P, Any]], Callable[P, ResponseReturnValue]]:
    """Declare a route: its `answer` with `status`, the statuses it refuses with, and what it takes.

    Args:
        media_type: of an answer that is no JSON object.
        public: asks for no key.
        others: what it answers with further statuses.
        query, json, form, headers: what the route takes there.
        body_optional: the body may be left out.
    """
    refused = {*refusals, *(() if public else (400, 401, 429, 503))}
    answers: dict[str, Any] = {f"HTTP_{code}": wire.ErrorObject for code in sorted(refused)}
    answers |= {f"HTTP_{code}": model for code, model in {status: answer, **others}.items()}

    def declare(route: Callable[P, Any]) -> Callable[P, ResponseReturnValue]:
        module = route.__module__.rpartition(".")[2]
        name = f"{module}.{route.__name__.rstrip('_')}"
        if media_type is not None:
            _media_types[name] = media_type
        if body_optional:
            _optional_bodies.add(name)
        declared: Callable[P, ResponseReturnValue] = _tree.validate(
            query=query,
            json=json,
            form=form,
            headers=headers,
            resp=Response(**answers),
            skip_validation=True,
            operation_id=name,
            tags=[module],
            security={} if public else None,
        )(route)
        return declared

    return declare


@functools.cache
def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document of the current application."""
    found: dict[str, Any] = _tree.spec
    for path in found["paths"].values():
        for declared in path.values():
            if declared["operationId"] in _optional_bodies:
                declared["requestBody"]["required"] = False
            media_type = _media_types.get(declared["operationId"])
            if media_type is not None:
                schema = {"type": "string", "format": "binary"}
                declared["responses"]["200"]["content"] = {media_type: {"schema": schema}}
    return found


@routes.get("/openapi.json")
def openapi() -> dict[str, Any]:
    return document()


@routes.get("/docs")
def docs() -> str:
    return flask.render_template("docs.html")


@routes.get("/docs/<name>")
def docs_file(name: str) -> flask.Response:
    """The files of Swagger UI, from the package that carries them."""
    if not name.startswith("swagger_"):
        flask.abort(404)
    with resources.as_file(resources.files("offapi")) as folder:
        return flask.send_from_directory(folder, name, max_age=86400)
