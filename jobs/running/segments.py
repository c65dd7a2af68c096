"""Stages: which requests of a job become segments of its open batches, and when."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from jobs.intake.requests import PreparedRequest
from jobs.running.live_item import OpenRequests
from store.artifacts import Artifacts
from store.formats import asks
from store.formats.plan import MAX_DUPLICATES, ORDINARY_OUTPUT, SegmentSize, request_class
from store.records import Segment

LEAD_SECONDS = 2.0
"""From an answer that makes room to the next segment's first request in the engine it takes a second or more."""


@dataclass(frozen=True)
class Cut:
    """The requests of one new segment. Their lines in the stage's batch begin with `first_line`."""

    stage: str
    model: str
    first_line: int
    requests: list[PreparedRequest]


class SegmentCutter:
    """Decides which requests become segments.

    Beyond what its engines hold, a model has requests out for the next LEAD_SECONDS, at its speed since its segments
    before, and at least a quarter of what the engines hold. Half of them later it gets more, once in `pause` seconds at
    most: from the deepest stage first, since its items are nearest to their end. So segments grow with the speed, no
    engine runs dry, and a request waits behind few others. In a job of one stage no request is nearer to its item's end
    than another: none is held back, and its segments are as large as a batch's.
    """

    def __init__(
        self, stages: Sequence[str], sizes: Mapping[str, SegmentSize], fills: Mapping[str, int], *, pause: float = 1.0
    ) -> None:
        """`sizes`: the largest segment of each model. `fills`: the requests that each model's engines hold."""
        self._stages = stages
        self._one_stage = len(stages) == 1
        self._sizes = sizes
        self._fills = fills
        self._pause = pause
        self._cut_at: dict[str, float] = {}
        self._answered: dict[str, int] = {}
        self._speeds: dict[str, float] = {}

    def capacity(self) -> int:
        """Return how many requests, out and buffered, keep every engine of a job busy."""
        segments = 2 if self._one_stage else 0
        return sum(
            max(4 * fill, 2 * (fill + self._ahead(model)), segments * self._sizes[model].requests)
            for model, fill in self._fills.items()
            if model in self._sizes  # else it is served no more
        )

    def cuts(self, requests: OpenRequests, lines: dict[str, int], now: float) -> list[Cut]:
        """Cut segments at `now` (time.monotonic()). `lines`, the next line of each stage, moves on."""
        cuts = []
        for model in requests.buffered():
            if not self._is_starving(requests, model) or now - self._cut_at.get(model, -math.inf) < self._pause:
                continue
            if model in self._cut_at:
                answered = requests.answered[model] - self._answered[model]
                self._speeds[model] = answered / max(self._pause, now - self._cut_at[model])
            self._cut_at[model], self._answered[model] = now, requests.answered[model]
            unanswered = requests.unanswered[model]
            most = math.inf if self._one_stage else self._fills[model] + self._ahead(model)
            for stage in reversed(self._stages):
                buffer = requests.buffers.get((stage, model))
                while buffer and unanswered < most:
                    cut = self._take(requests, stage, model, lines, most - unanswered)
                    unanswered += len(cut.requests)
                    cuts.append(cut)
        return cuts

    def all(self, requests: OpenRequests, lines: dict[str, int]) -> list[Cut]:
        """Take all requests of the earliest stage that has any: the way without streaming."""
        cuts: list[Cut] = []
        stage = next(filter(requests.buffered, self._stages), "")
        for model in requests.buffered(stage):
            while requests.buffers[stage, model]:
                cuts.append(self._take(requests, stage, model, lines))
        return cuts

    def starving(self, requests: OpenRequests) -> list[str]:
        """Return models with less than half of what they hold out, though requests wait."""
        return [model for model in requests.buffered() if requests.unanswered[model] < self._fills.get(model, 0) / 2]

    def next_in(self, requests: OpenRequests, now: float) -> float | None:
        """Return in how many seconds a starving model may have a segment; None if none waits."""
        waits = [
            self._cut_at[model] + self._pause - now
            for model in requests.buffered()
            if model in self._cut_at and self._is_starving(requests, model)
        ]
        return max(0.0, min(waits)) if waits else None

    def _is_starving(self, requests: OpenRequests, model: str) -> bool:
        return self._one_stage or requests.unanswered[model] < self._fills[model] + self._ahead(model) // 2

    def _ahead(self, model: str) -> int:
        """Return the requests that may wait in segments for a place in an engine."""
        return max(self._fills[model] // 4, math.ceil(LEAD_SECONDS * self._speeds.get(model, 0.0)), 2)

    def _take(
        self, requests: OpenRequests, stage: str, model: str, lines: dict[str, int], most: float = math.inf
    ) -> Cut:
        buffer, size = requests.buffers[stage, model], self._sizes[model]
        chosen: list[PreparedRequest] = []
        taken = 0
        number = min(size.requests, most)
        while buffer and len(chosen) < number and taken < size.bytes:
            chosen.append(buffer.popleft())
            taken += len(chosen[-1].body)
        # Requests with a common prefix stand together, and those with one fingerprint, of which one runs.
        chosen.sort(key=lambda request: (request.order_key, request.fingerprint or b"", request.position))
        first_line = lines.get(stage, 1)
        lines[stage] = first_line + len(chosen)
        return Cut(stage, model, first_line, chosen)


def write(artifacts: Artifacts, cuts: Sequence[Cut]) -> list[Segment]:
    """Write the plan file of these segments. Return them in the same order."""
    if not cuts:
        return []
    tables = [_table(cut) for cut in cuts]
    with artifacts.create() as file:
        asks.write(file, tables)
    planned = []
    for row_group, cut in enumerate(cuts):
        size = sum(len(request.body) for request in cut.requests)
        tokens = sum(ORDINARY_OUTPUT if one.output_tokens is None else one.output_tokens for one in cut.requests)
        planned.append(
            Segment(
                model=cut.model,
                requests=len(cut.requests),
                bytes=size,
                request_class=request_class(size, tokens),
                plan_sha256=file.sha256,
                row_group=row_group,
            )
        )
    return planned


def _table(cut: Cut) -> pa.Table:
    leaders: dict[bytes, tuple[int, int]] = {}
    same_as: list[int | None] = []
    for line, request in enumerate(cut.requests, cut.first_line):
        leader, copies = leaders.get(request.fingerprint or b"", (line, MAX_DUPLICATES))
        if request.fingerprint is None or copies >= MAX_DUPLICATES:
            same_as.append(None)
            leader, copies = line, -1
        else:
            same_as.append(leader)
        if request.fingerprint is not None:
            leaders[request.fingerprint] = (leader, copies + 1)
    columns = {
        "line": range(cut.first_line, cut.first_line + len(cut.requests)),
        "body": [
            "" if leader is not None else request.body.decode()
            for leader, request in zip(same_as, cut.requests, strict=True)
        ],
        "same_as": same_as,
        **{
            name: [getattr(request, name) for request in cut.requests]
            for name in ("custom_id", "fingerprint", "position", "life", "visit", "sample", "retry", "ask", "turn")
        },
    }
    return pa.table([pa.array(columns[field.name], field.type) for field in asks.SCHEMA], schema=asks.SCHEMA)
