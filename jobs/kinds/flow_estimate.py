"""The estimate of a job of rows: items, requests by stage, and when it would be done."""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from batchyard import durations, json_lines
from batchyard.errors import RequestError
from batchyard.recipes import FlowRecipe
from batchyard.request_lines.lines import LineError
from jobs.forecasts import SEGMENT_REQUESTS
from jobs.intake import options as job_options
from jobs.intake import rows
from jobs.intake.drafts import JobDraft
from jobs.intake.requests import PreparedRequest
from jobs.intake.rows import Columns, RowError
from jobs.kinds.item_checks import first_turns
from jobs.kinds.kind import FirstRequest, JobEstimate, StageOutlook
from store.queue import BacklogEntry
from store.records import File
from store.speeds import Throughput
from tasks.context import AppContext
from tasks.execution import engine_status
from tasks.intake.estimate import Part
from tasks.intake.validation import ValidationReport
from tasks.scheduling import costs, deadlines, dispatch, forecast
from tasks.scheduling.states import Engines
from tasks.scheduling.throughput import expected_finish, measured_throughputs

_JOB = "dry run"
"""The id of the job in its forecast."""
SAMPLE = 20
"""The first turns of so many items say how large requests are."""


def estimate(context: AppContext, recipe: FlowRecipe[Any], draft: JobDraft) -> JobEstimate:
    report = ValidationReport()
    items, sample = _rows(context, draft, report)
    if items is None:
        unknown = [StageOutlook(stage.name, stage.endpoint, None) for stage in draft.stages]
        return JobEstimate(items, unknown, errors=report.errors)
    options = recipe.options.model_validate(draft.job.options)
    shares = job_options.shares(context, recipe, options, draft)
    turns, errors = first_turns(context, recipe, draft.job, sample)
    requests = [request for turn in turns for request in turn]
    first_asks = Counter(request.stage for request in requests)
    bounds: Sequence[tuple[float, float | None]] = job_options.ask(context, recipe, "bounds", options) or [
        (first_asks[stage.name] / max(1, len(sample)), None) for stage in draft.stages
    ]
    stages = [
        StageOutlook(stage.name, stage.endpoint, each, *(ends if each is None else (each, each))).times(items)
        for stage, each, ends in zip(draft.stages, draft.expected, bounds, strict=True)
    ]
    endpoints = {stage.name: stage.endpoint for stage in stages}
    return JobEstimate(
        items,
        stages,
        **_Queue(context, recipe, draft, shares).end(stages, requests),
        parts=_parts(stages, shares, requests),
        requests=[
            FirstRequest(request.stage, endpoints[request.stage], json_lines.loads(request.body))
            for request in next(filter(None, turns), ())
        ],
        errors=errors,
    )


def _parts(
    stages: Sequence[StageOutlook], shares: Sequence[Mapping[str, float]], sample: Sequence[PreparedRequest]
) -> dict[str, Part] | None:
    requests: defaultdict[str, float] = defaultdict(float)
    for stage, by_model in zip(stages, shares, strict=True):
        if stage.expected is None or not by_model:
            return None
        for model, share in by_model.items():
            requests[model] += share * stage.expected
    if not sample:
        return None
    size = sum(len(request.body) for request in sample) / len(sample)
    limits = [request.output_tokens for request in sample if request.output_tokens is not None]
    limit = sum(limits) / len(limits) if len(limits) == len(sample) else None
    return {
        model: Part(round(count), round(count * size), None if limit is None else round(count * limit))
        for model, count in requests.items()
    }


def _rows(context: AppContext, new: JobDraft, report: ValidationReport) -> tuple[int | None, list[Columns | RowError]]:
    """Return the number of rows, None if it is not known, and the first ones."""
    source = new.source
    if source is None:
        return None, []
    name, sha256 = (
        (source.filename, source.sha256) if isinstance(source, File) else (source.name, source.content.sha256)
    )
    with context.artifacts.open(sha256) as file:
        try:
            options = new.job.options
            read = rows.rows(file, name, context.settings, options["null_values"])
            limited = islice(read, options["limit"])
            sample = list(islice(limited, SAMPLE))
            return len(sample) + sum(1 for _ in limited), sample
        except RequestError as error:
            report.add(None, LineError(error.code or "invalid_input_file", error.message, error.param))
            return None, []


def _unknown(message: str) -> dict[str, Any]:
    return {"warnings": [("eta_unknown", message)]}


class _Queue:
    """The work of this deployment, for a new job that asks the models of each stage in these shares."""

    def __init__(
        self, context: AppContext, recipe: FlowRecipe[Any], new: JobDraft, shares: Sequence[Mapping[str, float]]
    ) -> None:
        self._context = context
        self._new = new
        self._shares = shares
        self._streaming = recipe.options.model_validate(new.job.options).streaming
        with context.database.read() as session:
            self._throughputs = measured_throughputs(context, session)
            self._limits = dispatch.limits(context, session)
            self._now = time.time()
            self._recent_usage = dispatch.recent_usage(session, {new.job.project_id}, self._now)
        self._due_at = math.ceil(self._now) + durations.seconds(new.job.completion_window)
        self._engines = engine_status.known(context) or Engines(frozenset(context.models), {})
        models = {model for by_model in shares for model in by_model}
        self._speeds = {model: costs.throughput_of(model, "decode", self._throughputs) for model in models}

    def end(self, stages: Sequence[StageOutlook], sample: Sequence[PreparedRequest]) -> dict[str, Any]:
        """Return when the job would be done, or why nobody knows it, as fields of JobEstimate."""
        recipe, shares = self._new.job.recipe, self._shares
        if self._new.job.answers_from:
            return _unknown("No ETA: nobody knows yet how many answers of the other job fit.")
        for stage, by_model in zip(stages, shares, strict=True):
            if not by_model:
                return _unknown(f"No ETA: recipe {recipe!r} cannot say of stage {stage.name!r} which model it asks.")
        if unmeasured := sorted(model for model, speed in self._speeds.items() if speed is None):
            message = f"No ETA: the speed of {', '.join(unmeasured)} was not measured yet."
            return {"warnings": [("not_measured", message)]}
        if self._limits.projects.get(self._new.job.project_id) == 0:
            return _unknown("No ETA: the project's max_segments is 0, so nothing of it runs.")
        unknown = next((stage.name for stage in stages if stage.expected is None), None)
        if unknown is None:
            return {"seconds": self._seconds([stage.expected or 0 for stage in stages], shares)}
        requests_by_model = [
            Counter(request.model for request in sample if request.stage == stage.name) for stage in stages
        ]
        first_shares = [
            {model: number / counts.total() for model, number in counts.items()} or by_model
            for counts, by_model in zip(requests_by_model, shares, strict=True)
        ]
        earliest = self._seconds([stage.least or 0 for stage in stages], first_shares)
        most = [stage.most for stage in stages if stage.most is not None]
        latest = self._seconds(most, shares) if len(most) == len(stages) else None
        message = f"The ETA is a range: answers decide how many requests recipe {recipe!r} makes in stage {unknown!r}."
        return _unknown(message) | {"earliest": earliest, "latest": latest}

    def _seconds(self, counts: Sequence[float], shares: Sequence[Mapping[str, float]]) -> float:
        """Return when a job with so many requests would be done."""
        with self._context.database.read() as session:
            finish = expected_finish(session, [], round(sum(counts)))
        lanes = [self._lanes(count, by_model) for count, by_model in zip(counts, shares, strict=True)]
        by_stage = [self._duration(entries) for entries in lanes]
        seconds = sum(by_stage)
        if self._streaming:  # all engines are busy at once; but every item passes all stages one after the other
            latencies = [max(_latency(self._speeds[model]) for model in by_model) for by_model in shares]
            passage = sum(map(min, by_stage, latencies))
            seconds = max(passage, self._duration([entry for entries in lanes for entry in entries]))
        before = [
            at for model in self._speeds for due, at in deadlines.work_due(self._context, model) if due <= self._due_at
        ]
        return max(before, default=0.0) + seconds + finish.seconds

    def _duration(self, entries: Sequence[BacklogEntry]) -> float:
        if not entries:
            return 0.0
        now = self._now
        work_costs = costs.WorkCosts(entries, {}, self._throughputs)
        ends = forecast.forecast(work_costs, self._limits, self._recent_usage, now)
        return forecast.with_ends(ends, entries, self._throughputs, self._engines, now)[_JOB].at - now

    def _lanes(self, count: float, by_model: Mapping[str, float]) -> list[BacklogEntry]:
        return [
            BacklogEntry(
                batch_id=_JOB,
                project_id=self._new.job.project_id,
                infeasible=False,
                due_at=self._due_at,
                model=model,
                request_class="decode",
                active=False,
                segments=math.ceil(requests / SEGMENT_REQUESTS),
                requests=requests,
                bytes=0,
                answered=0,
            )
            for model, share in by_model.items()
            if (requests := math.ceil(share * count))
        ]


def _latency(speed: Throughput | None) -> float:
    """Return the seconds of a request in a full engine (Little's law)."""
    return 0.0 if speed is None else speed.limit * speed.work_per_request / speed.speed(speed.limit)[0]
