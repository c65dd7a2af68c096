"""/models: the models served, with their measured throughput, queues and engines."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from typing import Any

import flask
from flask import Blueprint, Response
from flask.typing import ResponseReturnValue

from batchyard import latency
from store import batches, holds
from tasks.execution import engine_status
from tasks.metrics import Snapshot
from tasks.scheduling.throughput import measured_throughputs
from webapp import metrics
from webapp.requests import caller, current_context

routes = Blueprint("models", __name__, url_prefix="/models")


@routes.get("")
def show() -> ResponseReturnValue:
    """Show the page. For htmx: the models alone, or nothing (204) if what the browser shows is still so."""
    variables = _variables()
    if "HX-Request" not in flask.request.headers:
        return flask.render_template("models.html", **variables)
    if flask.request.args.get("seen") == variables["stamp"]:
        return Response(status=204)
    return flask.render_template("models_live.html", **variables)


def _variables() -> dict[str, Any]:
    context, admin = current_context(), caller().admin
    with context.database.read() as session:
        throughputs = measured_throughputs(context, session)
        latest = batches.latest_latencies(session, None if admin else caller().project_id, time.time())
        held = holds.all_of(session)
        failures = {
            model: {name: getattr(failure, name) for name in ("at", "reason", "requests", "deaths", "next")}
            for model, failure in holds.failures(session).items()
        }
    measured = latency.summary(latency.merged(latest))
    snapshot = metrics.snapshot_for_caller()
    known = engine_status.known(context)
    variables = {
        "throughputs": {
            name: {kind: throughput for (model, kind), throughput in throughputs.items() if model == name}
            for name in context.models
        },
        "latencies": {name: measured and measured.models.get(name) for name in context.models},
        "unserved": [queue for queue in snapshot.queue.models if queue.held and queue.model not in context.models],
        "queues": {queue.model: replace(queue, oldest_seconds=None) for queue in snapshot.queue.models},
        "holds": {
            queue.model: {name: getattr(held[queue.model], name) for name in ("since", "attempts", "retry_at")}
            for queue in snapshot.queue.models
            if queue.model in held
        },
        "failures": failures,
        "starting": known.starting if known is not None else {},
        "prefix_hits": _prefix_hits(snapshot) if admin else {},
        "engines": None
        if snapshot.engines is None
        else {name: [engine for engine in snapshot.engines if engine.model == name] for name in context.models},
    }
    return {
        **variables,
        "stamp": hashlib.sha256(repr(variables).encode()).hexdigest()[:16],
        "now": time.time(),
        "models": context.models.values(),
        "capabilities": {name: engine_status.capabilities(spec) for name, spec in context.models.items()},
        "contexts": {name: engine_status.context_length(spec) for name, spec in context.models.items()},
    }


def _prefix_hits(snapshot: Snapshot) -> dict[str, float]:
    """Return the share of input tokens that came from prefix caches, by model, of all that engines have answered."""
    totals = snapshot.totals or {}
    return {
        model: amount / totals["input_tokens", model]
        for (what, model), amount in totals.items()
        if what == "cached_tokens" and amount and totals.get(("input_tokens", model))
    }
