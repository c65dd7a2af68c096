"""The estimate of a job of rows: items, requests by stage, and when it would be done."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import orjson

from batchyard import durations
from batchyard.errors import RequestError
from batchyard.recipes import FlowRecipe
from store.queue import BacklogEntry
from store.records import File
from store.speeds import Throughput
from tasks.context import AppContext
from tasks.execution import engine_status
from tasks.intake.estimate import Part
from tasks.intake.lines import LineError
from tasks.intake.validation import ValidationReport
from tasks.jobs.intake import options as job_options
from tasks.jobs.intake import rows
from tasks.jobs.intake.drafts import JobDraft
from tasks.jobs.intake.requests import PreparedRequest
from tasks.jobs.intake.rows import Columns, RowError
from tasks.jobs.kinds.item_checks import ItemChecker
from tasks.jobs.kinds.kind import FirstRequest, JobEstimate, StageOutlook, Warnings
from tasks.scheduling import costs, deadlines, dispatch, forecast
from tasks.scheduling.states import Engines
from tasks.scheduling.throughput import expected_finish, measured_throughputs

_JOB = "dry run"
"""The id of the job in its forecast."""
SAMPLE = 20
"""The first turns of so many items say how large requests are."""


def estimate(context: AppContext, recipe: FlowRecipe[Any], draft: JobDraft) -> JobEstimate:
    """Return what a job would do. Raises RequestError."""
    report = ValidationReport()
    items, sample = _rows(context, draft, report)
    stages = [
        StageOutlook(stage.name, stage.endpoint, None if each is None or items is None else round(each * items))
        for stage, each in zip(draft.stages, draft.expected, strict=True)
    ]
    if items is None:
        return JobEstimate(items, stages, errors=report.errors)
    options = recipe.options.model_validate(draft.job.options)
    shares = job_options.shares(recipe, options, draft.stages, draft.job.models)
    seconds, warnings = _seconds(context, recipe, draft, stages, shares)
    checker = ItemChecker(context, draft.job, recipe, report)
    turns: list[list[PreparedRequest]] = []
    for number, row in enumerate(sample, 1):
        checker.checked(number, row, probed=True)
        turns.append(checker.first_turn)
    endpoints = {stage.name: stage.endpoint for stage in stages}
    return JobEstimate(
        *(items, stages, seconds, warnings),
        parts=_parts(stages, shares, [request for turn in turns for request in turn]),
        requests=[
            FirstRequest(request.stage, endpoints[request.stage], orjson.loads(request.body))
            for request in next(filter(None, turns), ())
        ],
        errors=report.errors,
    )


def _parts(
    stages: Sequence[StageOutlook], shares: Sequence[Mapping[str, float]], sample: Sequence[PreparedRequest]
) -> dict[str, Part] | None:
    """Return what all requests ask of each model. Those of later stages are taken to be as large as the sample's."""
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
    """Return the number of rows and the first ones. It is None for an input that is not there yet or cannot be read.

    Why it cannot be read goes to the report.
    """
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


def _seconds(
    context: AppContext,
    recipe: FlowRecipe[Any],
    new: JobDraft,
    stages: Sequence[StageOutlook],
    shares: Sequence[Mapping[str, float]],
) -> tuple[float | None, Warnings]:
    """Return in how many seconds the job would be done, or why nobody can know."""
    options = recipe.options.model_validate(new.job.options)
    if new.job.answers_from:
        return None, [("eta_unknown", "No ETA: nobody knows yet how many answers of the other job fit.")]
    for stage, by_model in zip(stages, shares, strict=True):
        if stage.expected is None or not by_model:
            depends = "which model it asks" if stage.expected is not None else "how many requests it makes"
            message = f"No ETA: recipe {recipe.name!r} cannot say of stage {stage.name!r} {depends}."
            return None, [("eta_unknown", message)]
    with context.database.read() as session:
        throughputs = measured_throughputs(context, session)
        limits = dispatch.limits(context, session)
        recent_usage = dispatch.recent_usage(session, {new.job.project_id}, now := time.time())
        finish = expected_finish(session, [], sum(stage.expected or 0 for stage in stages))
    speeds = {
        model: costs.throughput_of(model, "decode", throughputs) for stage_shares in shares for model in stage_shares
    }
    unmeasured = sorted(model for model, speed in speeds.items() if speed is None)
    if unmeasured:
        return None, [("not_measured", f"No ETA: the speed of {', '.join(unmeasured)} was not measured yet.")]
    if limits.projects.get(new.job.project_id) == 0:
        return None, [("eta_unknown", "No ETA: the project's max_segments is 0, so nothing of it runs.")]
    due_at = math.ceil(now) + durations.seconds(new.job.completion_window)
    lanes = [_lanes(new, stage, stage_shares, due_at) for stage, stage_shares in zip(stages, shares, strict=True)]
    engines = engine_status.known(context) or Engines(frozenset(context.models), {})

    def duration(entries: Sequence[BacklogEntry]) -> float:
        ends = forecast.forecast(entries, {}, throughputs, limits, recent_usage, now)
        return forecast.with_ends(ends, entries, throughputs, engines, now)[_JOB].at - now if entries else 0.0

    by_stage = [duration(entries) for entries in lanes]
    seconds = sum(by_stage)
    if options.streaming:  # all engines are busy at once; but every item passes all stages one after the other
        latencies = [max(_latency(speeds[model]) for model in stage_shares) for stage_shares in shares]
        passage = sum(map(min, by_stage, latencies))
        seconds = max(passage, duration([entry for entries in lanes for entry in entries]))
    before = [at for model in speeds for due, at in deadlines.work_due(context, model) if due <= due_at]
    return max(before, default=0.0) + seconds + finish.seconds, []


def _lanes(new: JobDraft, stage: StageOutlook, shares: Mapping[str, float], due_at: int) -> list[BacklogEntry]:
    """Return the requests of a stage as pending segments, for each model."""
    counts = {model: math.ceil(share * (stage.expected or 0)) for model, share in shares.items()}
    return [
        BacklogEntry(
            batch_id=_JOB,
            project_id=new.job.project_id,
            infeasible=False,
            due_at=due_at,
            model=model,
            request_class="decode",
            active=False,
            segments=math.ceil(requests / deadlines.JOB_SEGMENT),
            requests=requests,
            bytes=0,
            answered=0,
        )
        for model, requests in counts.items()
        if requests
    ]


def _latency(speed: Throughput | None) -> float:
    """Return how long a request takes in a full engine, by Little's law."""
    return 0.0 if speed is None else speed.limit * speed.work_per_request / speed.speed(speed.limit)[0]
