"""/metrics for Prometheus, and /v1/queue: what waits, what runs and how fast, over the whole deployment."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import flask
import redis
from flask import Blueprint, Flask, Response, current_app, g
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from store import queue
from tasks import progress
from tasks.house import House
from webapp import wire
from webapp.document import operation
from webapp.requests import caller, current_house

log = logging.getLogger(__name__)

routes = Blueprint("metrics", __name__)

BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0)
TOKENS = {"input_tokens": "input", "cached_tokens": "cached", "output_tokens": "output"}


class _Queue(Collector):
    """The queue, looked at when it is asked for."""

    def __init__(self, house: House) -> None:
        self._house = house

    def collect(self) -> Iterator[Metric]:
        with self._house.database.read() as session:
            now = queue.look(session)
        batches = GaugeMetricFamily("batchyard_batches", "Batches that have not ended.", labels=["status"])
        for status, count in now.batches.items():
            batches.add_metric([status], count)
        yield batches
        if now.next_deadline_seconds is not None:
            yield GaugeMetricFamily(
                "batchyard_next_deadline_seconds", "Time to the first deadline.", value=now.next_deadline_seconds
            )
        segments = GaugeMetricFamily("batchyard_segments", "Segments that are not done.", labels=["model", "state"])
        for model in now.models:
            segments.add_metric([model.model, "pending"], model.pending_segments)
            segments.add_metric([model.model, "running"], model.running_segments)
        yield segments
        for name, help_ in (
            ("waiting_requests", "Requests of pending segments."),
            ("oldest_seconds", "Age of the oldest batch with a pending segment."),
            ("rows_per_second", "Requests answered a second, over the last minute."),
            ("tokens_per_second", "Input and output tokens a second, over the last minute."),
        ):
            family = GaugeMetricFamily(f"batchyard_{name}", help_, labels=["model"])
            for model in now.models:
                value = getattr(model, name)
                if value is not None:  # nothing was measured
                    family.add_metric([model.model], value)
            yield family
        yield from self._totals()

    def _totals(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("batchyard_requests", "Requests answered.", labels=["model", "outcome"])
        tokens = CounterMetricFamily("batchyard_tokens", "Tokens, as engines count them.", labels=["model", "kind"])
        try:
            for (what, model), amount in progress.totals(self._house).items():
                if what in TOKENS:
                    tokens.add_metric([model, TOKENS[what]], amount)
                else:
                    requests.add_metric([model, what], amount)
        except redis.RedisError as error:
            log.warning("totals not read: %s", error)
        yield requests
        yield tokens


def register(app: Flask, house: House) -> None:
    """Time every request, and collect the queue when asked."""
    registry = CollectorRegistry()
    registry.register(_Queue(house))
    app.extensions["metrics"] = registry
    seconds = Histogram(
        "batchyard_http_request_seconds",
        "Time from a request's first byte to its answer's.",
        ["method", "route", "status"],
        buckets=BUCKETS,
        registry=registry,
    )

    @app.after_request
    def _observe(response: Response) -> Response:
        rule = flask.request.url_rule
        # A method nobody knows comes without a route: clients must not be able to make up labels.
        labels = (flask.request.method, rule.rule) if rule else ("none", "none")
        seconds.labels(*labels, response.status_code).observe(time.monotonic() - g.began)
        return response


@routes.get("/metrics")
@operation(None, media_type="text/plain", public=True)
def metrics() -> Response:
    """The deployment's metrics, as Prometheus reads them."""
    return Response(generate_latest(current_app.extensions["metrics"]), content_type=CONTENT_TYPE_LATEST)


@routes.get("/v1/queue")
@operation(wire.QueueObject)
def look() -> wire.QueueObject:
    """Look at the queue: what waits and what runs, over all projects."""
    caller()
    with current_house().database.read() as session:
        return wire.QueueObject.model_validate(queue.look(session), from_attributes=True)
