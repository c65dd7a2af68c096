"""/models: the models served, with their measured throughput, queues and engines."""

from __future__ import annotations

import time

import flask
from flask import Blueprint
from flask.typing import ResponseReturnValue

from batchyard import latency
from store import batches
from tasks.execution import engine_status
from tasks.scheduling.throughput import measured_throughputs
from webapp import metrics
from webapp.requests import caller, current_context

routes = Blueprint("models", __name__, url_prefix="/models")


@routes.get("")
def show() -> ResponseReturnValue:
    context = current_context()
    with context.database.read() as session:
        throughputs = measured_throughputs(context, session)
        project_id = None if caller().admin else caller().project_id
        latest = batches.latest_latencies(session, project_id, time.time())
    measured = latency.summary(latency.merged(latest))
    snapshot = metrics.own_snapshot()
    return flask.render_template(
        "models.html",
        now=time.time(),
        models=context.models.values(),
        capabilities={name: engine_status.capabilities(spec) for name, spec in context.models.items()},
        contexts={name: engine_status.context_length(spec) for name, spec in context.models.items()},
        throughputs={
            name: {kind: throughput for (model, kind), throughput in throughputs.items() if model == name}
            for name in context.models
        },
        latencies={name: measured and measured["models"].get(name) for name in context.models},
        unserved=[queue for queue in snapshot.queue.models if queue.held and queue.model not in context.models],
        queues={queue.model: queue for queue in snapshot.queue.models},
        engines=None
        if snapshot.engines is None
        else {name: [engine for engine in snapshot.engines if engine.model == name] for name in context.models},
    )
