"""/v1/models: what this deployment serves."""

from __future__ import annotations

from flask import Blueprint

from batchyard.errors import NotFoundError
from batchyard.models import ModelSpec
from webapp import wire
from webapp.document import operation
from webapp.requests import caller, current_house

routes = Blueprint("models", __name__)


def to_wire(spec: ModelSpec) -> wire.ModelObject:
    ours = wire.ModelExtension(
        engine=spec.engine,
        endpoints=list(spec.endpoints),
        simulated=spec.simulated,
        config_sha256=spec.config_sha256,
    )
    return wire.ModelObject(id=spec.name, created=0, owned_by="batchyard", batchyard=ours)


@routes.get("/v1/models")
@operation(wire.ModelPage)
def list_() -> wire.ModelPage:
    """List the models this deployment serves."""
    caller()
    return wire.ModelPage.of([to_wire(spec) for spec in current_house().models.values()], more=False)


@routes.get("/v1/models/<path:name>")
@operation(wire.ModelObject, refusals=(404,))
def retrieve(name: str) -> wire.ModelObject:
    """Look at a model."""
    caller()
    spec = current_house().models.get(name)
    if spec is None:
        raise NotFoundError(f"The model '{name}' does not exist.", code="model_not_found", param="model")
    return to_wire(spec)
