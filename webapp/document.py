"""The OpenAPI document at /openapi.json, and /docs to browse it.

Each route declares its parameters and responses with `operation`. spectree validates nothing: a route authenticates
its caller first, then reads its request.
"""

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
from spectree.model_adapter.protocol import SchemaMode
from spectree.models import SecureType, SecuritySchemeData

from batchyard import __version__

routes = Blueprint("document", __name__)
P = ParamSpec("P")


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorObject(BaseModel):
    """What every request that fails is answered with."""

    error: ErrorDetail


class _Tree(SpecTree):
    """Makes the schemas of models when the document is first asked for. Where routes are declared, that is at every
    start of a server, it would take 0.4 s of CPU."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._declared: dict[tuple[Any, SchemaMode], None] = {}

    def _add_model(self, model: Any, mode: SchemaMode = "validation") -> str:
        self._declared.pop((model, mode), None)  # of a model's modes the last one counts
        self._declared[model, mode] = None
        return self.naming_strategy(model)

    def _generate_spec(self) -> dict[str, Any]:
        for model, mode in self._declared:
            super()._add_model(model, mode)
        return super()._generate_spec()


_tree = _Tree(
    "flask",
    annotations=False,
    mode="strict",
    path="docs",
    title="Batchyard",
    version=__version__,
    description="OpenAI's Files and Batches, and Anthropic's Message Batches, answered on your own machines. Keys are "
    "sent as Bearer tokens, or in x-api-key.",
    naming_strategy=lambda model: model.__name__,
    nested_naming_strategy=lambda _parent, child: child,
    security_schemes=[SecurityScheme(name="key", data=SecuritySchemeData(SecureType.HTTP, scheme="bearer"))],
    security={"key": []},
    validation_error_status=400,
    validation_error_model=ErrorObject,
)
_BYTES = {"type": "string", "format": "binary"}
# Properties that spectree cannot declare, by operation id.
_media_types: dict[str, str] = {}
_optional_bodies: set[str] = set()
_body_types: dict[str, str] = {}


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
    error: type[BaseModel] = ErrorObject,
) -> Callable[[Callable[P, Any]], Callable[P, ResponseReturnValue]]:
    """Declare a route: the model of its `answer` with `status`, its error statuses, and its parameters.

    `media_type` is that of an answer that is not JSON, `others` are models of answers with other statuses. A `public`
    route needs no key.
    """
    error_codes = {*refusals, *(() if public else (400, 401, 429, 503))}
    answers: dict[str, Any] = {f"HTTP_{code}": error for code in sorted(error_codes)}
    answers |= {f"HTTP_{code}": model for code, model in {status: answer, **others}.items()}

    def declare(route: Callable[P, Any]) -> Callable[P, ResponseReturnValue]:
        name = _operation_id(route)
        if media_type is not None:
            _media_types[name] = media_type
        if body_optional:
            _optional_bodies.add(name)
        view: Callable[P, ResponseReturnValue] = _tree.validate(
            query=query,
            json=json,
            form=form,
            headers=headers,
            resp=Response(**answers),
            skip_validation=True,
            operation_id=name,
            tags=[name.partition(".")[0]],
            security={} if public else None,
        )(route)
        if media_type is None:
            return view

        @functools.wraps(view)
        def streamed(*args: P.args, **kwargs: P.kwargs) -> ResponseReturnValue:
            """Call the route itself: spectree's view reads a response as a whole before its first byte is sent."""
            answer: ResponseReturnValue = route(*args, **kwargs)
            return answer

        return streamed

    return declare


def takes(media_type: str) -> Callable[[Callable[P, Any]], Callable[P, Any]]:
    """Declare that the body of a route is neither JSON nor a form."""

    def declare(route: Callable[P, Any]) -> Callable[P, Any]:
        _body_types[_operation_id(route)] = media_type
        return route

    return declare


def _operation_id(route: Callable[..., Any]) -> str:
    return f"{route.__module__.rpartition('.')[2]}.{route.__name__.rstrip('_')}"


@routes.get("/openapi.json", endpoint="openapi")
@functools.cache
def document() -> dict[str, Any]:
    spec: dict[str, Any] = _tree.spec
    for entry in (entry for path in spec["paths"].values() for entry in path.values()):
        name = entry["operationId"]
        if name in _optional_bodies:
            entry["requestBody"]["required"] = False
        if name in _body_types:
            entry["requestBody"] = {"required": True, "content": {_body_types[name]: {"schema": _BYTES}}}
        if name in _media_types:
            entry["responses"]["200"]["content"] = {_media_types[name]: {"schema": _BYTES}}
    return spec


@routes.get("/docs")
def docs() -> str:
    return flask.render_template("docs.html")


@routes.get("/docs/<name>")
def docs_file(name: str) -> flask.Response:
    """Send a file of Swagger UI from its package."""
    if not name.startswith("swagger_"):
        flask.abort(404)
    with resources.as_file(resources.files("offapi")) as folder:
        return flask.send_from_directory(folder, name, max_age=86400)
