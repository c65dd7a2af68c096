"""Validation: streams a batch's input once, reports every bad line, and writes the plan.

Errors have the codes and params of OpenAI's Batch API where it defines one.
"""

from __future__ import annotations

import array
import bisect
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from batchyard import json_lines
from batchyard.endpoints import output_lines
from batchyard.endpoints.bodies.common import prompts
from batchyard.endpoints.catalog import EMBEDDINGS
from batchyard.endpoints.guards import Guard
from batchyard.models import ModelSpec
from batchyard.request_lines.lines import LineError, custom_id, parse, parse_with_body
from batchyard.request_lines.warnings import ParameterWarnings
from batchyard.settings import Settings
from batchyard.telemetry import spans
from batchyard.wording import MAX_MESSAGE, MAX_NAME, cut, quoted
from inference.engine import EngineAnswer
from inference.engines import registry
from store import batches, speeds
from store.formats.lines import numbered_lines
from store.formats.plan import PlanWriter, SegmentSize
from store.records import Batch
from store.work import traces
from tasks.context import AppContext
from tasks.execution import progress, tally
from tasks.heartbeat import hold_batch
from tasks.intake import sampling
from tasks.intake.requests import RequestChecker
from tasks.port import running_models
from tasks.steps import registry as steps

log = logging.getLogger(__name__)

MAX_ERRORS = 1000
# Ending a segment costs 0.1 s of CPU, and its slot is empty meanwhile: much shorter segments would waste engines.
SEGMENT_SECONDS = 30
# A segment holds at least this many times the requests in flight, however slow its engines are.
SEGMENT_FILLS = 2
UNMEASURED_REQUESTS = 2000
# A speed of fewer measurements decides no size: the first include the start of an engine and a worker.
MEASUREMENTS = 8
# For an engine that starts for each segment. The bytes bound memory, which holds a whole segment.
JOB_SIZE = SegmentSize(500_000, 2**30)


class ValidationReport:
    """The errors of a file: the first MAX_ERRORS by line, and their `count`. `of_file`: one is of the whole file."""

    def __init__(self) -> None:
        self.count = 0
        self.of_file = False
        self._first: list[tuple[int, dict[str, Any]]] = []

    def add(self, line: int | None, error: LineError) -> dict[str, Any]:
        """Add an error and return it; `line` is None for one of the whole file, which sorts first."""
        self.count += 1
        self.of_file |= line is None
        message, param = cut(error.message, MAX_MESSAGE), error.param and cut(error.param, MAX_NAME)
        entry = {"code": error.code, "line": line, "message": message, "param": param}
        if len(self._first) == MAX_ERRORS and (line or 0) >= self._first[-1][0]:
            return entry
        bisect.insort(self._first, (line or 0, entry), key=lambda numbered: numbered[0])
        del self._first[MAX_ERRORS:]
        return entry

    @property
    def errors(self) -> list[dict[str, Any]]:
        """The entries of a batch's `errors.data`; the last one gives the total if there are more."""
        entries = [entry for _, entry in self._first]
        if self.count > MAX_ERRORS:
            message = f"There are {self.count} errors in all; these are the first {MAX_ERRORS}."
            entries.append({"code": "too_many_errors", "line": None, "message": message, "param": None})
        return entries


def run(context: AppContext, batch_id: str, holder: str) -> bool:
    """Validate a batch and plan it, or end it as failed; False if another worker does, or did."""
    with hold_batch(context, batch_id, holder, pause=0.0) as lease:
        if lease is None:
            return False
        with context.database.read() as session:
            batch = session.get_one(Batch, batch_id)
        if batch.planned or batch.status not in ("validating", "cancelling"):
            return False
        if not batch.input_sha256:
            # Its input file did not exist when it was created.
            owner = f"organization {batch.project_id} does not have access to it."
            message = f"Cannot find file '{batch.input_file_id}', or {owner}"
            missing = ValidationReport()
            missing.add(None, LineError("invalid_request", message, "file_id"))
            with context.database.write() as session:
                lease.release(session)
                batches.reject(session, batch.id, missing.errors)
            return True
        report = ValidationReport()
        common = (context.models, batch.endpoint, context.settings, batch.post_process)
        validator = Validator(*common, skip_invalid=batch.on_invalid == "skip", guard=batch.guard)
        with context.artifacts.open(batch.input_sha256) as source, context.artifacts.create() as target:
            plan = PlanWriter(target, segment_sizes(context), context.artifacts)
            if batch.sample_rows is not None:
                limits = context.settings.max_line_bytes, context.settings.max_requests
                validator.sample = sampling.lines(source, batch.sample_rows, *limits)
                source.seek(0)
            with spans.span("validate", traces.place(batch)) as span:
                runs = validator.run(source, plan, report)
                span.set({"batchyard.errors": report.count})
            with spans.span("plan", traces.place(batch)) as span:
                plan.close() if runs else plan.discard()
                span.set({"batchyard.segments": len(plan.segments) if runs else 0})
        with context.database.write() as session:
            lease.release(session)
            if not runs:
                batches.reject(session, batch_id, report.errors)
            else:
                specs = {segment.model: context.models[segment.model] for segment in plan.segments}
                batches.plan(
                    session,
                    batch,
                    plan_sha256=target.sha256,
                    segments=plan.segments,
                    refused=plan.refused,
                    warnings=[*validator.warnings.entries, *without_price(batch.stop_when, specs)],
                    models={name: spec.model_dump(mode="json") for name, spec in specs.items()},
                    simulated=any(registry.capabilities(spec.engine).simulated for spec in specs.values()),
                    sample_segments=plan.sample_segments or None,
                )
    log.info("validated", extra={"batch_id": batch_id, "errors": report.count})
    for number in plan.refused if runs else ():
        tally.count(context, plan.segments[number].model, {"failed": plan.segments[number].requests})
    progress.publish(context, batch_id)
    return True


def without_price(limits: Mapping[str, float] | None, specs: Mapping[str, ModelSpec]) -> list[dict[str, Any]]:
    """Return the warning of a limit of cost that some of the models never reach."""
    names = [name for name, spec in specs.items() if spec.price is None]
    if not names or "cost" not in (limits or {}):
        return []
    message = f"stop_when.cost counts nothing of models without a price: {', '.join(names)}. Limit tokens, too."
    entry = {"code": "model_without_price", "line": None, "message": cut(message, MAX_MESSAGE)}
    return [entry | {"param": "stop_when.cost"}]


def segment_sizes(context: AppContext) -> dict[str, SegmentSize]:
    """Return the segment size of each model: SEGMENT_SECONDS of work once its speed is known."""
    limit = context.settings.segment_requests
    with context.database.read() as session:
        specs = running_models(context, session)
        throughputs = speeds.throughputs(session, specs)
    sizes = dict.fromkeys(specs, SegmentSize(min(limit, UNMEASURED_REQUESTS)))
    for (name, _), throughput in throughputs.items():
        if throughput.measurements < MEASUREMENTS:
            continue
        spec = specs[name]
        minimum = SEGMENT_FILLS * spec.in_flight() * spec.replicas
        speed, _ = throughput.speed(throughput.limit)
        requests = max(minimum, int(speed / throughput.work_per_request * SEGMENT_SECONDS))
        sizes[name] = SegmentSize(min(limit, requests))
    jobs = {name for name, spec in specs.items() if registry.capabilities(spec.engine).starts_each_run}
    return sizes | dict.fromkeys(jobs, JOB_SIZE)


@dataclass
class Validator:
    """Checks the lines of one file. Keeps 8 bytes per line, and nothing else of it, in memory.

    By default one invalid line fails the file, as OpenAI does it. With `skip_invalid` such lines are planned as
    requests that were refused, and the others run.

    `warnings`: of the valid lines. `sample`: numbers of lines that are planned before all others. `lines_before`: lines
    of an open batch, after which these stand in its plan, without the blank ones.
    """

    models: dict[str, ModelSpec]
    endpoint: str
    settings: Settings
    post_process: Iterable[dict[str, Any]] = ()
    skip_invalid: bool = False
    lines_before: int | None = None
    guard: Guard | None = None
    sample: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self._checker = RequestChecker(self.models, steps.checks(self.post_process), self.settings.models, self.guard)
        self.warnings = ParameterWarnings(self.endpoint)

    def run(self, source: IO[bytes], plan: PlanWriter | None, report: ValidationReport) -> bool:
        """Add valid lines to `plan`, if any, and errors to `report`. Return True if the batch can run."""
        hashes = array.array("q")
        # A line is skipped when it is read, so what repeats has to be known before.
        unique = None
        if self.skip_invalid:
            unique = _Unique(_repeated(_hashes(source, self.settings.max_line_bytes)))
            source.seek(0)
        requests = inputs = valid = 0
        for number, raw in numbered_lines(source, self.settings.max_line_bytes):
            requests += 1
            line = number if self.lines_before is None else self.lines_before + requests
            try:
                request, body_json = parse_with_body(number, raw, self.settings.max_line_bytes)
                model = self._checker.check(self.endpoint, request)
                body = self._checker.guarded(self.endpoint, model, request["body"])
                if body is not request["body"]:
                    request["body"], body_json = body, json_lines.dumps(body)
                if unique is not None:
                    unique.check(number, request)
                else:
                    hashes.append(hash(request["custom_id"]))
            except LineError as error:
                entry = report.add(number, error)
                if plan and self.skip_invalid:
                    name = custom_id(raw)
                    reason = {key: entry[key] for key in ("code", "message", "param")}
                    answer = output_lines.invalid(number, name, reason)
                    plan.add(None, number, name or "", b"", answer, sampled=number in self.sample)
                continue
            valid += 1
            self.warnings.add(line, request["body"])
            if self.endpoint == EMBEDDINGS.path:
                texts = request["body"].get("input")
                inputs += 1 if texts is None else len(prompts(texts))  # messages are one input
            # After an error that fails the file the plan is discarded.
            if plan and (self.skip_invalid or not report.count) and requests <= self.settings.max_requests:
                self._plan(plan, model, line, request, body_json)
        if not requests:
            report.add(None, LineError("empty_file", "The file has no requests."))
        self._report_limit(report, requests, self.settings.max_requests, "requests")
        self._report_limit(report, inputs, self.settings.max_embedding_inputs, "embedding_inputs")
        if unique is not None:
            return valid > 0 and not report.of_file
        self._report_duplicates(source, _repeated(hashes), report)
        return not report.count

    def _plan(self, plan: PlanWriter, model: str, number: int, request: dict[str, Any], body_json: bytes) -> None:
        custom_id = request["custom_id"]
        prepared = self._checker.prepare(self.endpoint, model, request["body"], body_json)
        if isinstance(prepared, EngineAnswer):
            answer = output_lines.line(custom_id, prepared.status_code, json_lines.dumps(prepared.body), None)
            plan.add(model, number, custom_id, body_json, answer, sampled=number in self.sample)
            return
        plan.add(
            model,
            number,
            custom_id,
            body_json,
            output_limit=prepared.output_limit,
            order_key=prepared.order_key,
            fingerprint=prepared.fingerprint,
            sampled=number in self.sample,
        )

    def _report_limit(self, report: ValidationReport, count: int, limit: int, unit: str) -> None:
        if count > limit:
            message = (
                f"The file has {count} {unit.replace('_', ' ')}, the most is {limit}; split it, or raise "
                f"BATCHYARD_MAX_{unit.upper()}."
            )
            report.add(None, LineError("too_many_tasks", message))

    def _report_duplicates(self, source: IO[bytes], repeated: set[int], report: ValidationReport) -> None:
        """Report repeated custom_ids, whose hashes are `repeated`."""
        if not repeated:
            return
        source.seek(0)
        unique = _Unique(repeated)
        for number, raw in numbered_lines(source, self.settings.max_line_bytes):
            try:
                request = parse(number, raw, self.settings.max_line_bytes)
                self._checker.check(self.endpoint, request)
            except LineError:
                continue  # it has an error already, and claims no id
            try:
                unique.check(number, request)
            except LineError as duplicate:
                report.add(number, duplicate)


class _Unique:
    """Finds repeated custom_ids of valid lines. Keeps only the ids whose hash is `repeated`."""

    def __init__(self, repeated: set[int]) -> None:
        self._repeated = repeated
        self._first_lines: dict[str, int] = {}

    def check(self, number: int, request: dict[str, Any]) -> None:
        """Raise LineError if an earlier line has the request's custom_id."""
        name = request.get("custom_id")
        if not isinstance(name, str) or hash(name) not in self._repeated:
            return
        line = self._first_lines.setdefault(name, number)
        if line != number:
            message = f"The custom_id {quoted(name)} is used on line {line} already; it must be unique."
            raise LineError("duplicate_custom_id", message, "custom_id")


def _hashes(source: IO[bytes], max_line_bytes: int) -> array.array[int]:
    hashes = array.array("q")
    for number, raw in numbered_lines(source, max_line_bytes):
        try:
            request = parse(number, raw, max_line_bytes)
        except LineError:
            continue
        if isinstance(request.get("custom_id"), str):
            hashes.append(hash(request["custom_id"]))
    return hashes


def _repeated(hashes: array.array[int]) -> set[int]:
    values, counts = np.unique(np.frombuffer(hashes, dtype=np.int64) if hashes else np.empty(0), return_counts=True)
    return set(values[counts > 1].tolist())
