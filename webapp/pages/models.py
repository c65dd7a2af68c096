"""/models: the models served, and the page of each with its measured throughput, queue and engines."""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import replace

import flask
import redis
from flask import Blueprint, Response
from flask.typing import ResponseReturnValue

from batchyard import latency, models
from batchyard.errors import NotFoundError, RequestError
from batchyard.recipes.blocks import Lines, Series
from batchyard.wording import quoted
from store import batches, holds
from tasks.context import AppContext
from tasks.execution import engine_status
from tasks.live import traffic
from tasks.scheduling.throughput import measured_throughputs
from webapp import metrics
from webapp.models import changer
from webapp.pages.charts.lines import over_time
from webapp.pages.charts.shapes import Chart
from webapp.pages.forms import Problem
from webapp.pages.trying import endpoint_of
from webapp.requests import caller, current_context

routes = Blueprint("models", __name__, url_prefix="/models")

LEAST_MINUTES = 10
"""A chart shows the last hour, from the first answer in it on, but no less than this."""


@routes.post("")
def change() -> ResponseReturnValue:
    """Add, change or remove a model, for administrators, and show the page."""
    fields = {name: flask.request.form.get(name, "").strip() for name in ("id", "engine", "source", "entry")}
    name, changes = fields["id"], changer()
    try:
        if "remove" in flask.request.form:
            changes.remove(name)
        else:
            entry = models.toml(fields["entry"]) | {key: fields[key] for key in ("engine", "source") if fields[key]}
            changes.set(name, entry) if name in current_context().models else changes.add(name, entry)
    except ValueError as error:
        refusal = RequestError(f"The further keys are not valid TOML: {error}.", code="invalid_value", param="entry")
        return _page(Problem.of(refusal)), refusal.status
    except RequestError as error:
        return _page(Problem.of(error)), error.status
    return flask.redirect(flask.url_for("pages.models.show"), 303)


@routes.get("")
@routes.get("/<path:name>")
def show(name: str | None = None) -> ResponseReturnValue:
    """Show all models or one. For htmx: the live part, or nothing (204) if what the browser shows is still so."""
    if name is not None and name not in current_context().models:
        raise NotFoundError(f"There is no model {quoted(name)}.")
    return _page(name=name)


def _page(problem: Problem | None = None, name: str | None = None) -> str | Response:
    context, admin = current_context(), caller().admin
    shown = {one: spec for one, spec in context.models.items() if name in (None, one)}
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
            one: {kind: throughput for (model, kind), throughput in throughputs.items() if model == one}
            for one in shown
        },
        "latencies": {one: measured and measured.models.get(one) for one in shown},
        "unserved": [queue for queue in snapshot.queue.models if queue.held and queue.model not in context.models],
        "queues": {queue.model: replace(queue, oldest_seconds=None) for queue in snapshot.queue.models},
        "holds": {
            queue.model: {name: getattr(held[queue.model], name) for name in ("since", "attempts", "retry_at")}
            for queue in snapshot.queue.models
            if queue.model in held
        },
        "failures": failures,
        "starting": known.starting if known is not None else {},
        "prefix_hits": _prefix_hits(snapshot.totals or {}) if admin else {},
        "live": {one.model: one for one in snapshot.live or ()},
        "charts": {} if name is None else _charts(context),
        "engines": None
        if snapshot.engines is None
        else {one: [engine for engine in snapshot.engines if engine.model == one] for one in shown},
    }
    stamp, is_part = hashlib.sha256(repr(variables).encode()).hexdigest()[:16], "HX-Request" in flask.request.headers
    if is_part and flask.request.args.get("seen") == stamp:
        return Response(status=204)
    return flask.render_template(
        "models_live.html" if is_part else "models.html",
        **variables,
        problem=problem,
        fields=flask.request.form,
        one=shown.get(name or ""),
        poll=flask.url_for("pages.models.show", name=name, seen=stamp),
        now=time.time(),
        models=shown.values(),
        capabilities={one: engine_status.capabilities(spec) for one, spec in shown.items()},
        tryable={one for one, spec in shown.items() if endpoint_of(spec)},
        contexts={one: engine_status.context_length(spec) for one, spec in shown.items()},
    )


def _charts(context: AppContext) -> dict[str, Chart]:
    """Return what each model with live requests in the last hour has answered, live beside batches."""
    try:
        history = traffic.history(context)
    except redis.RedisError:
        return {}
    charts = {}
    for model, minutes in history.items():
        if any(minute.live for minute in minutes):
            first = next(index for index, minute in enumerate(minutes) if minute.live or minute.batch)
            shown = minutes[min(first, len(minutes) - LEAST_MINUTES) :]
            block = Lines(
                title=f"Output tokens per second in each of the last {len(shown)} minutes",
                x=[float(minute) for minute in range(1, len(shown) + 1)],
                series=[
                    Series(name="live requests", y=[round(minute.live, 2) for minute in shown]),
                    Series(name="batches", y=[round(minute.batch, 2) for minute in shown]),
                ],
            )
            charts[model] = over_time(block, unit="min", marks={}, looks={})
    return charts


def _prefix_hits(totals: Mapping[tuple[str, str], int]) -> dict[str, float]:
    """Return the share of input tokens that came from prefix caches, by model, of all that engines have answered."""
    return {
        model: amount / totals["input_tokens", model]
        for (what, model), amount in totals.items()
        if what == "cached_tokens" and amount and totals.get(("input_tokens", model))
    }
