"""/v1/models: what this deployment serves."""

from __future__ import annotations

from typing import Literal

from flask import Blueprint
from pydantic import BaseModel

from batchyard.errors import NotFoundError
from batchyard.models import ModelSpec
from tasks.execution import engine_status
from webapp import wire
from webapp.document import operation
from webapp.requests import caller, current_context

routes = Blueprint("models", __name__)


class ModelExtension(BaseModel):
    """What this project says of a model beside OpenAI's fields."""

    engine: str
    endpoints: list[str]
    simulated: bool
    config_sha256: str


class ModelObject(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    shutdown_date: str | None = None
    batchyard: ModelExtension


class ModelPage(wire.Page[ModelObject]):
    pass


def to_wire(spec: ModelSpec) -> ModelObject:
    ours = ModelExtension(
        engine=spec.engine,
        endpoints=list(spec.endpoints),
        simulated=engine_status.capabilities(spec).simulated,
        config_sha256=spec.config_sha256,
    )
    return ModelObject(id=spec.name, created=0, owned_by="batchyard", batchyard=ours)


@routes.get("/v1/models")
@operation(ModelPage)
def list_() -> ModelPage:
    """List the models this deployment serves."""
    caller()
    return ModelPage.of([to_wire(spec) for spec in current_context().models.values()], has_more=False)


@routes.get("/v1/models/<path:name>")
@operation(ModelObject, refusals=(404,))
def retrieve(name: str) -> ModelObject:
    """Look at a model."""
    caller()
    spec = current_context().models.get(name)
    if spec is None:
        raise NotFoundError(f"The model '{name}' does not exist.", code="model_not_found", param="model")
    return to_wire(spec)
