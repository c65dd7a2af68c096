"""/metrics for Prometheus; /v1/queue and /v1/demand: what waits and runs, of the whole deployment or of a project."""

from dataclasses import asdict

from flask import Blueprint, Response, current_app
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from tasks import metrics
from tasks.metrics import Snapshot
from tasks.scheduling import demand
from webapp.document import operation
from webapp.requests import administrator, caller, current_context
from webapp.wire.models import DemandObject, EngineObject, ModelDemandObject, QueueObject

routes = Blueprint("metrics", __name__)


@routes.get("/metrics")
@operation(None, media_type="text/plain", public=True)
def show() -> Response:
    """The deployment's metrics, as Prometheus reads them."""
    return Response(generate_latest(current_app.extensions["metrics"]), content_type=CONTENT_TYPE_LATEST)


@routes.get("/v1/queue")
@operation(QueueObject)
def look() -> QueueObject:
    """Look at the queue: what waits and what runs, in the project, or for an admin key in the deployment."""
    snapshot = snapshot_for_caller()
    engines = snapshot.engines if caller().admin else None
    return QueueObject(
        **asdict(snapshot.queue),
        messages=snapshot.messages if caller().admin else None,
        engines=None if engines is None else [EngineObject.model_validate(engine) for engine in engines],
        live=snapshot.live,
    )


def snapshot_for_caller() -> Snapshot:
    """Return a snapshot for the caller. The queue is that of all projects only for an admin key."""
    owner = caller()
    project_id = None if owner.admin else owner.project_id
    return metrics.collect(current_context(), with_processes=False, project_id=project_id)


@routes.get("/v1/demand")
@operation(DemandObject, refusals=(403,))
def need() -> DemandObject:
    """Look up how many replicas of each model the queue needs to keep its deadlines, for an autoscaler."""
    administrator()
    context = current_context()
    models = [
        ModelDemandObject(
            model=name,
            replicas_needed=entry.needed,
            replicas_running=entry.running,
            replicas=context.models[name].replicas,
        )
        for name, entry in demand.read(context).items()
    ]
    return DemandObject(models=models)
