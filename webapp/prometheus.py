"""The metrics of the deployment as Prometheus reads them: a snapshot at each scrape, and the time of each request."""

import itertools
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import flask
from flask import Flask, Response, g
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from batchyard.wording import FLAWS
from tasks import metrics
from tasks.context import AppContext
from tasks.execution import tally
from tasks.live.demand import answers_live
from tasks.live.traffic import BOUNDS
from tasks.metrics import JOB_TICK_SECONDS, BatchState, JobState, Snapshot

BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0)
TIER = ("model", "tier")
SEVERAL = "(several)"
"""The label of a batch of several models."""
Samples = Iterable[tuple[Sequence[str], float | None]]


class _Deployment(Collector):
    """A Prometheus collector that takes a snapshot of the deployment at each scrape."""

    def __init__(self, context: AppContext) -> None:
        self._context = context

    def collect(self) -> Iterator[Metric]:
        context = self._context.fresh()
        snapshot, models = metrics.collect(context), context.models
        yield from _queue(snapshot)
        yield from _models(snapshot)
        yield from _jobs(snapshot)
        # A counter that begins with its first death would show no increase.
        amounts: dict[tuple[str, ...], int] = {("engine_deaths", name): 0 for name in models}
        for (what, model), amount in (snapshot.totals or {}).items():
            name, *labels = what.split(":")
            amounts[name, model, *labels] = amount
        yield from _totals(amounts | (snapshot.job_totals or {}))
        for kind in ("ttft", "itl"):
            live = {name: spec.live for name, spec in models.items() if answers_live(spec)}
            targets = {name: getattr(settings, f"{kind}_ms") / 1000 for name, settings in live.items()}
            yield _gauge(f"live_{kind}_target_seconds", "What models.toml aims at.", ["model"], _by_name(targets))
        yield _gauge("deliveries", "Webhook deliveries on their way.", ["state"], _by_name(snapshot.deliveries))
        if snapshot.messages is not None:
            yield _gauge("messages", "Messages that wait for a worker.", ["queue"], _by_name(snapshot.messages))
        sizes, seconds = ({name: pair[one] for name, pair in snapshot.processes.items()} for one in (0, 1))
        yield _gauge("process_resident_bytes", "Memory of a process and all it started.", ["process"], _by_name(sizes))
        meaning = "CPU time of a process and all it started that are alive."
        yield _gauge("process_cpu_seconds", meaning, ["process"], _by_name(seconds))


def _gauge(name: str, meaning: str, labels: list[str], samples: Samples) -> GaugeMetricFamily:
    """Return a gauge of samples; those with an unknown value (None) are left out."""
    family = GaugeMetricFamily(f"batchyard_{name}", meaning, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric(values, value)
    return family


def _by_name(numbers: Mapping[str, float]) -> Samples:
    return [((name,), number) for name, number in numbers.items()]


def _queue(snapshot: Snapshot) -> Iterator[Metric]:
    queue = snapshot.queue
    yield _gauge("batches", "Batches that have not ended.", ["status"], _by_name(queue.batches))
    yield _gauge("batches_paused", "Batches that wait until somebody resumes them.", [], [((), queue.paused)])
    yield _gauge("batches_sla", "Batches that have not ended, by SLA state.", ["sla"], _by_name(queue.sla))
    meaning = "Time to the first end of a window, negative once it has passed."
    yield _gauge("next_deadline_seconds", meaning, [], [((), queue.next_deadline_seconds)])
    batches = [(batch.model or SEVERAL, batch) for batch in snapshot.batches]
    meaning = "Least time from the expected end of an unfinished batch until it is due."
    yield _spare("batch_spare_seconds", meaning, "model", batches)


def _models(snapshot: Snapshot) -> Iterator[Metric]:
    models = snapshot.queue.models
    states = {"pending": "pending_segments", "running": "running_segments"}
    segments = [((entry.model, state), getattr(entry, name)) for entry in models for state, name in states.items()]
    yield _gauge("segments", "Segments that are not done.", ["model", "state"], segments)
    for name, meaning in (
        ("waiting_requests", "Requests of pending segments."),
        ("oldest_seconds", "Age of the oldest batch with a pending segment."),
        ("rows_per_second", "Requests answered a second, over the last minute."),
        ("tokens_per_second", "Input and output tokens a second, over the last minute."),
    ):
        yield _gauge(name, meaning, ["model"], [((entry.model,), getattr(entry, name)) for entry in models])
    held = [((entry.model,), float(entry.held is not None)) for entry in models]
    yield _gauge("model_held", "1 if the model cannot run and its batches wait.", ["model"], held)
    demands = [((model,), entry.needed) for model, entry in snapshot.demand.items()]
    yield _gauge("replicas_needed", "Replicas that keep the deadlines of what is queued.", ["model"], demands)
    engines = snapshot.engines or []
    states_of_engines = sorted(Counter((engine.model, engine.state) for engine in engines).items())
    yield _gauge("engines", "Resident engines, as they were seen last.", ["model", "state"], states_of_engines)
    for name, meaning in (
        ("preemptions", "Running requests whose cache an engine took, to compute them again."),
        ("redone_requests", "Requests of batches that have lost their place to live ones."),
        ("redone_input_tokens", "Tokens of their prompts, computed before that."),
        ("redone_output_tokens", "Tokens that were generated for them before that."),
    ):
        counter = CounterMetricFamily(f"batchyard_engine_{name}", meaning, labels=["model", "engine"])
        for engine in engines:
            if (number := getattr(engine, name)) is not None:
                counter.add_metric([engine.model, engine.name], number)
        yield counter
    for name, meaning, attribute in (
        ("engine_in_flight", "Requests in a model's engines, as they were seen last.", "in_flight"),
        ("live_in_flight", "Live requests in a model's engines, as they were seen last.", "live_in_flight"),
        ("live_waiting", "Live requests that wait to enter a model's engines.", "live_waiting"),
        ("engine_batch_limit", "Requests of batches that a model's engines may hold now.", "batch_limit"),
    ):
        of_engines = Counter[str]()
        for engine in engines:
            if (number := getattr(engine, attribute)) is not None:
                of_engines[engine.model] += number
        yield _gauge(name, meaning, ["model"], _by_name(of_engines))


def _spare(name: str, meaning: str, label: str, entries: Iterable[tuple[str, BatchState | JobState]]) -> Metric:
    """Return a gauge of the least spare time by label. It has no ids: a scrape needs no key."""
    least: dict[str, float] = {}
    for value, entry in entries:
        if entry.eta_seconds is not None:
            least[value] = min(least.get(value, math.inf), entry.due_seconds - entry.eta_seconds)
    return _gauge(name, meaning, [label], _by_name(least))


def _jobs(snapshot: Snapshot) -> Iterator[Metric]:
    entries = snapshot.recipes
    jobs = [((entry.recipe, entry.status), entry.jobs) for entry in entries]
    yield _gauge("jobs", "Jobs that have not ended.", ["recipe", "status"], jobs)
    items: Counter[tuple[str, str]] = Counter()
    restarted: Counter[tuple[str, ...]] = Counter()
    for entry in entries:
        items.update({(entry.recipe, state): number for state, number in entry.items.items()})
        restarted[entry.recipe,] += entry.restarted
    yield _gauge("job_items", "Items of jobs that have not ended.", ["recipe", "state"], items.items())
    meaning = "Items of jobs that have not ended, begun again because their recipe's file has changed."
    yield _gauge("job_items_restarted", meaning, ["recipe"], restarted.items())
    meaning = "Least time from the expected end of an unfinished job until it is due."
    yield _spare("job_spare_seconds", meaning, "recipe", [(job.recipe, job) for job in snapshot.jobs])


COUNTERS: Mapping[str, tuple[str, Sequence[str]]] = {
    "requests": ("Requests answered.", ("model", "outcome")),
    "shared_requests": ("Requests that got another's answer.", ("model",)),
    "flawed_answers": (
        "Answers that were cut off, are empty, lack the form that was asked for, or repeat themselves.",
        ("model", "flaw"),
    ),
    "tokens": ("Tokens, as engines count them.", ("model", "kind")),
    "request_errors": ("Requests that failed, by code.", ("model", "code")),
    "segment_retries": ("Segments that failed and run again.", ("model",)),
    "engine_deaths": ("Engines that died.", ("model",)),
    "judgement_errors": ("Calls of a reward or a gate that raised, hung or died.", ("name",)),
    "live_requests": ("Live requests that have ended.", TIER),
    "live_failures": ("Those of them that have no answer.", TIER),
    "live_output_tokens": ("Tokens of their answers.", TIER),
    "live_engine_seconds": ("Their share of the time of their engines.", TIER),
    "job_items": ("Items that have ended.", ("recipe", "state")),
    "job_counter": ("What the results of items have counted, as their recipe names it.", ("recipe", "name")),
    "hungry_seconds": (
        "Time in which jobs held requests back while less than half of what the model holds was out.",
        ("model",),
    ),
}
"""What each counter means, and its labels."""
OF_TOTALS: Mapping[str, tuple[str, Sequence[str]]] = {
    **{what: ("requests", (what,)) for what in ("completed", "failed")},
    **{what: ("flawed_answers", (what,)) for what in FLAWS},
    **{
        f"{kind}_tokens": ("tokens", (kind,)) for kind in ("input", "cached", "output", "shared_input", "shared_output")
    },
    **{"error": ("request_errors", ()), "retries": ("segment_retries", ())},
    **{"live_failed": ("live_failures", ()), "live_tokens": ("live_output_tokens", ())},
    **{"live": ("live_engine_seconds", ()), "hungry": ("hungry_seconds", ())},
    **{"items": ("job_items", ()), "counter": ("job_counter", ())},
}
"""The counter of a total with another name, and the labels that follow from its name."""
HISTOGRAMS: Mapping[str, tuple[str, str, Sequence[str], Sequence[float]]] = {
    "seconds": ("request", "Time of a request in its engine.", ("model", "request_class"), tally.REQUEST_SECONDS),
    "live_first": ("live_ttft", "From a streamed live request's arrival to its first token.", TIER, BOUNDS["first"]),
    "live_gap": ("live_itl", "Between two pieces of a live request's stream.", TIER, BOUNDS["gap"]),
    "live_queue": ("live_queue", "Of a live request, before it entered its engine.", TIER, BOUNDS["queue"]),
    "tick": ("job_advance", "Time of one tick of a job.", (), JOB_TICK_SECONDS),
}
"""By the name of its totals, what each histogram of seconds is called, what it means, its labels and its bounds."""

UNITS = {"_ms": 1000, "_us": 1_000_000}
"""Parts of a second that totals are in, by the end of their names."""


def _totals(amounts: Mapping[tuple[str, ...], int]) -> Iterator[Metric]:
    """Yield the counters and histograms of totals by name and labels.

    Those of a histogram are its buckets, with the bucket's number as the last label, and the sum, which has a unit.
    """
    counters = {
        name: CounterMetricFamily(f"batchyard_{name}", meaning, labels=labels)
        for name, (meaning, labels) in COUNTERS.items()
    }
    timed: dict[str, dict[tuple[str, ...], dict[str, float]]] = {name: defaultdict(dict) for name in HISTOGRAMS}
    for (what, *labels), amount in amounts.items():
        name, unit = (what[:-3], UNITS[what[-3:]]) if what[-3:] in UNITS else (what, 1)
        if name in timed:
            *values, bucket = labels if unit == 1 else (*labels, "sum")
            timed[name][tuple(values)][bucket] = amount / unit
        else:
            counter, fixed = OF_TOTALS.get(name, (name, ()))
            if counter in counters:  # Redis may have others, of another version
                counters[counter].add_metric([*labels, *fixed], amount / unit)
    yield from counters.values()
    for name, (called, meaning, names, bounds) in HISTOGRAMS.items():
        family = HistogramMetricFamily(f"batchyard_{called}_seconds", meaning, labels=names)
        for of_labels, numbers in timed[name].items():
            family.add_metric(of_labels, _buckets(bounds, numbers), numbers.get("sum", 0))
        yield family


def _buckets(bounds: Sequence[float], numbers: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the cumulative buckets of a histogram, of numbers by the index of the bound; the last has none."""
    names = [*map(floatToGoString, bounds), "+Inf"]
    reached = itertools.accumulate(numbers.get(str(bucket), 0) for bucket in range(len(names)))
    return list(zip(names, reached, strict=True))


def register(app: Flask, context: AppContext) -> None:
    """Time every request, and collect a snapshot at each scrape."""
    registry = CollectorRegistry()
    registry.register(_Deployment(context))
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
        # An unknown method has no route. Clients must not be able to create label values.
        labels = (flask.request.method, rule.rule) if rule else ("none", "none")
        seconds.labels(*labels, response.status_code).observe(time.monotonic() - g.began)
        return response
