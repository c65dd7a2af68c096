"""Validation: streams a batch's input once, reports every bad line, and writes the plan.

Codes and params of the errors are those of OpenAI's Batch API where it has them.
"""

from __future__ import annotations

import array
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import orjson

from batchyard.errors import UnavailableError
from batchyard.models import ModelSpec
from inference import engines
from store import batches
from store.records import Batch, now
from tasks import dispatch, progress
from tasks.heartbeat import hold_batch
from tasks.house import House
from tasks.plan import PlanWriter

log = logging.getLogger(__name__)

MAX_ERRORS = 1000
MAX_LINE_BYTES = 16 * 1024 * 1024
# What a body must hold, by endpoint.
CONTENT = {"/v1/chat/completions": "messages", "/v1/completions": "prompt", "/v1/embeddings": "input"}


@dataclass(frozen=True)
class LineError(Exception):
    """What is wrong with one line."""

    code: str
    message: str
    param: str | None = None


@dataclass
class Report:
    """The errors of a file: the first MAX_ERRORS of them, and how many there are."""

    errors: list[dict[str, Any]] = field(default_factory=list)
    count: int = 0

    def add(self, line: int | None, error: LineError) -> None:
        self.count += 1
        if len(self.errors) < MAX_ERRORS:
            entry = {"code": error.code, "line": line, "message": error.message, "param": error.param}
            self.errors.append(entry)


def run(house: House, batch_id: str, holder: str) -> None:
    """Validate a batch and plan it, or end it as failed. Does nothing if somebody else does, or did."""
    with hold_batch(house, batch_id, holder, pause=0.0) as lease:
        if lease is None:
            return
        with house.database.read() as session:
            batch = session.get_one(Batch, batch_id)
        if batch.plan_sha256 is not None or batch.status not in ("validating", "cancelling"):
            return
        report = Report()
        try:
            with house.artifacts.open(batch.input_sha256) as source, house.artifacts.create() as target:
                plan = PlanWriter(target, house.settings.segment_requests)
                Validator(house.models, batch.endpoint, house.settings.max_requests).run(source, plan, report)
                plan.close()
        except UnavailableError as error:
            if now() < batch.expires_at:
                raise  # housekeeping tries again
            report.add(None, LineError("invalid_request", f"The input file cannot be read: {error}", "file_id"))
        with house.database.write() as session:
            lease.guard(session)
            if report.count:
                batches.reject(session, batch_id, report.errors)
            else:
                used = {model: house.models[model] for model, _ in plan.segments}
                batches.plan(
                    session,
                    batch,
                    plan_sha256=target.sha256,
                    segments=plan.segments,
                    models={name: spec.model_dump(mode="json") for name, spec in used.items()},
                    simulated=any(spec.simulated for spec in used.values()),
                )
    log.info("validated", extra={"batch_id": batch_id, "errors": report.count})
    progress.publish(house, batch_id)
    dispatch.run(house)


class Validator:
    """Checks the lines of one file, in memory that does not grow with it (8 bytes a line)."""

    def __init__(self, models: dict[str, ModelSpec], endpoint: str, max_requests: int) -> None:
        self._models = models
        self._endpoint = endpoint
        self._max_requests = max_requests
        self._checks: dict[str, Callable[[dict[str, Any]], tuple[str, str] | None]] = {}

    def run(self, source: IO[bytes], plan: PlanWriter, report: Report) -> None:
        """Put every good line into `plan` and every bad one into `report`."""
        hashes = array.array("q")
        for number, raw in numbered_lines(source):
            try:
                request = parse(number, raw)
                model = self._check(request)
            except LineError as error:
                report.add(number, error)
                continue
            if len(hashes) >= self._max_requests:
                message = (
                    f"The file has more than {self._max_requests} requests; split it, or raise BATCHYARD_MAX_REQUESTS."
                )
                report.add(number, LineError("too_many_tasks", message))
                break
            hashes.append(hash(request["custom_id"]))
            if not report.count:  # after the first error the plan is of no use
                plan.add(model, number, request["custom_id"], orjson.dumps(request["body"]))
        if not hashes and not report.count:
            report.add(None, LineError("empty_file", "The file has no requests."))
        self._report_duplicates(source, hashes, report)

    def _check(self, request: dict[str, Any]) -> str:
        """The model a request names. Raises LineError."""
        check_envelope(request, self._endpoint)
        body = request["body"]
        model = body.get("model")
        if not isinstance(model, str) or not model:
            raise LineError("invalid_request", "The body names no model.", "body.model")
        spec = self._models.get(model)
        if spec is None:
            served = ", ".join(sorted(self._models))
            raise LineError(
                "model_not_found", f"The model {model[:100]!r} is not served here; served: {served}.", "body.model"
            )
        if self._endpoint not in spec.endpoints:
            raise LineError(
                "unsupported_parameter",
                f"The model {model!r} does not serve {self._endpoint}; it serves {', '.join(spec.endpoints)}.",
                "url",
            )
        check_content(body, self._endpoint)
        refused = self._refusal(spec)(body)
        if refused is not None:
            raise LineError("unsupported_parameter", refused[1], refused[0])
        return model

    def _refusal(self, spec: ModelSpec) -> Callable[[dict[str, Any]], tuple[str, str] | None]:
        check = self._checks.get(spec.name)
        if check is None:
            engine = engines.engine_class(spec.engine)
            check = self._checks[spec.name] = lambda body: engine.unsupported(spec, self._endpoint, body)
        return check

    def _report_duplicates(self, source: IO[bytes], hashes: array.array[int], report: Report) -> None:
        """Find repeated custom_ids: by hash over all lines, then exactly, over the few lines whose hash repeats."""
        values, counts = np.unique(np.frombuffer(hashes, dtype=np.int64) if hashes else np.empty(0), return_counts=True)
        repeated = set(values[counts > 1].tolist())
        if not repeated:
            return
        source.seek(0)
        first: dict[str, int] = {}
        for number, raw in numbered_lines(source):
            try:
                custom_id = parse(number, raw).get("custom_id")
            except LineError:
                continue
            if isinstance(custom_id, str) and hash(custom_id) in repeated:
                line = first.setdefault(custom_id, number)
                if line != number:
                    message = f"The custom_id {custom_id[:100]!r} is used on line {line} already; it must be unique."
                    report.add(number, LineError("duplicate_custom_id", message, "custom_id"))
        report.errors.sort(key=lambda error: error["line"] or 0)


def numbered_lines(source: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Physical line numbers, from 1, and lines that are not blank; of a line that is too long only its start."""
    number = 0
    while raw := source.readline(MAX_LINE_BYTES + 1):
        number += 1
        rest = raw
        while len(rest) > MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = source.readline(MAX_LINE_BYTES + 1)
        if raw.strip():
            yield number, raw


def parse(number: int, raw: bytes) -> dict[str, Any]:
    """A line's JSON object. Raises LineError."""
    if len(raw) > MAX_LINE_BYTES:
        raise LineError("invalid_json_line", f"The line is longer than {MAX_LINE_BYTES} bytes.")
    if number == 1 and raw.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise LineError(
            "invalid_json_line", "The file starts with a byte order mark (BOM); save it as UTF-8 without one."
        )
    try:
        parsed = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        reason = error.msg if raw.isascii() else _encoding_error(raw) or error.msg
        raise LineError("invalid_json_line", f"The line is not valid JSON: {reason}.") from None
    if not isinstance(parsed, dict):
        raise LineError("invalid_json_line", "The line is valid JSON but not an object.")
    return parsed


def _encoding_error(raw: bytes) -> str | None:
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return f"byte {error.start + 1} is not UTF-8"
    return None


def check_envelope(request: dict[str, Any], endpoint: str) -> None:
    """custom_id, method, url and body. Raises LineError."""
    for name in ("custom_id", "method", "url", "body"):
        if request.get(name) is None:
            raise LineError("missing_required_parameter", f"Missing required parameter: '{name}'.", name)
    if not isinstance(request["custom_id"], str):
        raise LineError("invalid_request", "'custom_id' must be a string.", "custom_id")
    if request["method"] != "POST":
        raise LineError("invalid_method", "'method' must be 'POST'.", "method")
    if request["url"] != endpoint:
        message = f"The url {str(request['url'])[:100]!r} is not the batch's endpoint {endpoint!r}."
        raise LineError("invalid_url", message, "url")
    if not isinstance(request["body"], dict):
        raise LineError("invalid_request", "'body' must be an object.", "body")


def check_content(body: dict[str, Any], endpoint: str) -> None:
    """What the endpoint answers to: messages, prompt or input. Raises LineError."""
    name = CONTENT[endpoint]
    content = body.get(name)
    allowed = (list,) if name == "messages" else (list, str)
    if not isinstance(content, allowed) or not content:
        raise LineError(
            "invalid_request", f"The body has no '{name}', or not of a type that {endpoint} takes.", f"body.{name}"
        )
    if name == "messages":
        for position, message in enumerate(content):
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise LineError(
                    "invalid_request", "Each message is an object with a 'role'.", f"body.messages[{position}]"
                )
    if body.get("stream"):
        raise LineError("streaming_unsupported", "A batch cannot stream; leave 'stream' out.", "body.stream")
