"""/v1/models: what this deployment serves, and its changes."""

from collections.abc import Mapping
from typing import Any, cast

import redis
from flask import Blueprint

from batchyard.errors import NotFoundError
from batchyard.models import ModelSpec, newer, served_by_name
from store import holds
from store.records import EngineFailure, Hold
from tasks.changing_models import ModelChanger
from tasks.execution import engine_status
from tasks.execution.engine_status import EngineStatus
from webapp.document import operation
from webapp.requests import administrator, caller, current_context, parse_body, query
from webapp.wire import models as wire

routes = Blueprint("models", __name__)


def with_engines(specs: Mapping[str, ModelSpec]) -> list[wire.ModelObject]:
    """Return models and adapters as they cross the wire, with what their engines do. `specs`: by served name."""
    context = current_context()
    with context.database.read() as session:
        held, failures = holds.all_of(session), holds.failures(session)
    try:
        engines = engine_status.read(context)
    except redis.RedisError:
        engines = None
    known = engine_status.known(context)
    starting = {} if known is None else known.starting
    return [
        _object(name, spec, engines, held.get(spec.name), failures.get(spec.name), is_starting=spec.name in starting)
        for name, spec in specs.items()
    ]


def _object(
    name: str,
    spec: ModelSpec,
    engines: list[EngineStatus] | None = None,
    hold: Hold | None = None,
    failure: EngineFailure | None = None,
    *,
    is_starting: bool = False,
) -> wire.ModelObject:
    of_model = None if engines is None else [engine for engine in engines if engine.model == spec.name]
    states = {engine.state for engine in of_model or ()} | ({"starting"} if is_starting else set())
    state = next((each for each in ("busy", "idle", "starting") if each in states), "no_engine")
    if hold is not None:
        state = "on_hold"
    ours = wire.ModelExtension(
        engine=spec.engine,
        endpoints=list(spec.endpoints),
        simulated=engine_status.capabilities(spec).simulated,
        config_sha256=spec.config_sha256,
        answer_forms=engine_status.answer_forms(spec),
        logprobs=engine_status.tells_logprobs(spec),
        state=None if of_model is None and hold is None else cast(Any, state),
        in_flight=None if of_model is None else sum(engine.in_flight for engine in of_model),
        held=None if hold is None else hold.reason,
        last_failure=None if failure is None else wire.EngineFailureObject.model_validate(failure),
    )
    parent = None if name == spec.name else spec.name
    return wire.ModelObject(id=name, created=0, owned_by="batchyard", parent=parent, batchyard=ours)


@routes.get("/v1/models")
@operation(wire.ModelPage, query=wire.ListModels)
def list_() -> wire.ModelPage:
    """List the models this deployment serves, each with its adapters."""
    specs = served_by_name(current_context().models)
    listed = with_engines(specs) if query(wire.ListModels).engines else [_object(*each) for each in specs.items()]
    return wire.ModelPage.of(listed, has_more=False)


@routes.get("/v1/models/<path:name>")
@operation(wire.ModelObject, refusals=(404,))
def retrieve(name: str) -> wire.ModelObject:
    """Look at a model."""
    caller()
    spec = served_by_name(current_context().models).get(name)
    if spec is None:
        remedy = newer(current_context().settings.models, name)
        message = f"The model '{name}' does not exist{f'; {remedy}' if remedy else ''}."
        raise NotFoundError(message, code="model_not_found", param="model")
    return with_engines({name: spec})[0]


def changer() -> ModelChanger:
    """Return what changes the models for an administrator. Raises PermissionDeniedError."""
    owner, context = administrator(), current_context()
    assert context.source is not None
    return ModelChanger(context.settings, context.database, context.source, lambda _: owner, trusted=False)


@routes.post("/v1/models")
@operation(wire.ModelChanged, json=wire.AddModel, refusals=(403, 409, 413))
def add() -> wire.ModelChanged:
    """Add a model while others run. Every process serves it within two seconds."""
    changes, body = changer(), parse_body(wire.AddModel)
    return _changed(*changes.add(body.id, body.entry))


@routes.post("/v1/models/reload")
@operation(wire.ModelsReloaded, refusals=(403,))
def reload() -> wire.ModelsReloaded:
    """Read models.toml again, and say what that changes."""
    return wire.ModelsReloaded(**changer().reload())


@routes.patch("/v1/models/<path:name>")
@operation(wire.ModelChanged, json=wire.ChangeModel, refusals=(403, 404, 413))
def change(name: str) -> wire.ModelChanged:
    """Change a model while it runs. Running batches end with the configuration that they began with."""
    changes, body = changer(), parse_body(wire.ChangeModel)
    return _changed(*(changes.reset(name) if body.entry is None else changes.set(name, body.entry)))


@routes.delete("/v1/models/<path:name>")
@operation(wire.ModelRemoved, refusals=(403, 404))
def remove(name: str) -> wire.ModelRemoved:
    """Remove a model: new requests are refused, and its batches end."""
    changer().remove(name)
    return wire.ModelRemoved(id=name)


def _changed(spec: ModelSpec, warnings: list[str]) -> wire.ModelChanged:
    return wire.ModelChanged(**_object(spec.name, spec).model_dump(), warnings=warnings)
