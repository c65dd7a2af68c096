"""Which requests of a job become segments, and when: played against an engine in simulated time."""

from __future__ import annotations

import heapq
import random
import statistics
from collections import deque
from typing import Any

import orjson

from batchyard.models import ModelSpec
from batchyard.recipes import Ask, Flow, Item, Options, Result, recipe
from jobs.intake.requests import Preparer
from jobs.running.live import LiveItems
from jobs.running.programs import Programs
from jobs.running.segments import SegmentCutter
from store.formats.plan import SegmentSize

MODELS = {"echo": ModelSpec(name="echo", engine="echo")}
STAGES = ("first", "second", "third")
SLOTS = 32
TICK = 0.5
STEP = 0.1
ON_THE_WAY = 0.5
"""Seconds from a segment to its first request in the engine, and from an answer to the job."""


@recipe("chain", Options, stages=STAGES)
def chain(item: Item, options: Options) -> Flow:
    """Ask once in each stage, for as many tokens as the item's row says."""
    for stage, tokens in zip(STAGES, item.columns["lengths"], strict=True):
        yield [Ask(stage, "go on", model="echo", max_tokens=tokens)]
    return Result(text="done")


@recipe("once", Options, stages=("only",))
def once(item: Item, options: Options) -> Flow:
    """Ask once."""
    yield [Ask("only", "go on", model="echo")]
    return Result(text="done")


class Played:
    """A job of `number` items whose answers take lognormal seconds, played to its end.

    Attributes:
        dry: the share of the slots' time in which a slot was free though a request waited in a buffer.
        hops: seconds from the end of each answer to the same item's next request in the engine.
        segments: the requests of each.
    """

    def __init__(self, number: int) -> None:
        draws = random.Random(number)
        lengths = [[max(1, round(24 * draws.lognormvariate(0, 1))) for _ in STAGES] for _ in range(number)]
        self._items = LiveItems(Programs(chain, Options(), Preparer(MODELS).prepare))
        self._cutter = SegmentCutter(STAGES, {"echo": SegmentSize(500)}, {"echo": 2 * SLOTS})
        self._waiting: deque[tuple[float, str, int, int, int]] = deque()
        self._decoding: list[tuple[float, str, int, int]] = []
        self._coming: deque[tuple[float, str, int]] = deque()
        self._queue: deque[tuple[str, int, int, int]] = deque()
        self._answered_at: dict[int, float] = {}
        self.hops: list[float] = []
        self.segments: list[int] = []
        self._dry = 0
        lines: dict[str, int] = {}
        admitted, now = 0, 0.0
        while admitted < number or len(self._items):
            while self._coming and self._coming[0][0] <= now:
                _, stage, line = self._coming.popleft()
                self._items.answer(stage, line, answer(), 1.0)
            while admitted < number and self._out() < self._cutter.capacity():
                item = Item(admitted, f"item-{admitted}", {"lengths": lengths[admitted]})
                self._items.begin(admitted, item, 0)
                admitted += 1
            for cut in self._cutter.cuts(self._items.requests, lines, now):
                self._items.requests.issue(cut.requests, cut.first_line)
                self.segments.append(len(cut.requests))
                for line, request in enumerate(cut.requests, cut.first_line):
                    tokens = orjson.loads(request.body)["max_tokens"]
                    self._waiting.append((now + ON_THE_WAY, cut.stage, line, request.position, tokens))
            self._items.clear_committed()
            self._decode(now, now + TICK)
            now += TICK
        self.dry = self._dry * STEP / (SLOTS * now)

    def _out(self) -> int:
        return self._items.requests.total()

    def _decode(self, now: float, end: float) -> None:
        """Run the engine: it keeps twice as many requests as it has slots, and each free slot takes the next."""
        while now < end:
            while self._decoding and self._decoding[0][0] <= now:
                at, stage, line, position = heapq.heappop(self._decoding)
                self._coming.append((at + ON_THE_WAY, stage, line))
                self._answered_at[position] = at
            while len(self._decoding) + len(self._queue) < 2 * SLOTS and self._waiting and self._waiting[0][0] <= now:
                _, stage, line, position, tokens = self._waiting.popleft()
                self._queue.append((stage, line, position, tokens))
                if position in self._answered_at:
                    self.hops.append(now - self._answered_at.pop(position))
            while len(self._decoding) < SLOTS and self._queue:
                stage, line, position, tokens = self._queue.popleft()
                heapq.heappush(self._decoding, (now + tokens / 10, stage, line, position))
            if self._items.requests.pending().total():
                self._dry += SLOTS - len(self._decoding)
            now += STEP


def answer() -> str:
    body: dict[str, Any] = {"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]}
    return orjson.dumps({"response": {"status_code": 200, "body": body}, "error": None}).decode()


def test_no_slot_is_free_while_requests_wait_and_items_go_on_soon() -> None:
    for number in (75, 400):
        played = Played(number)
        hops = statistics.quantiles(played.hops, n=20)
        assert played.dry < 0.02
        assert hops[9] < 2.5 and hops[18] < 5


def test_segments_grow_with_the_speed_of_the_engines() -> None:
    items = LiveItems(Programs(chain, Options(), Preparer(MODELS).prepare))
    cutter = SegmentCutter(STAGES, {"echo": SegmentSize(20_000)}, {"echo": 8})
    lines: dict[str, int] = {}
    sizes = []
    for position in range(1500):
        items.begin(position, Item(position, f"item-{position}", {"lengths": [1, 1, 1]}), 0)
    for moment in range(7):  # the engine answers all that it has within a second
        for cut in cutter.cuts(items.requests, lines, float(moment)):
            items.requests.issue(cut.requests, cut.first_line)
            sizes.append(len(cut.requests))
            for line in range(cut.first_line, cut.first_line + len(cut.requests)):
                items.answer(cut.stage, line, answer(), 0.1)
    assert sizes[0] == 8 + 2
    assert max(sizes) > 200


def test_without_streaming_a_stage_waits_for_the_one_before() -> None:
    items = LiveItems(Programs(chain, Options(), Preparer(MODELS).prepare))
    cutter = SegmentCutter(STAGES, {"echo": SegmentSize(4)}, {"echo": 8})
    for position in range(6):
        items.begin(position, Item(position, f"item-{position}", {"lengths": [1, 1, 1]}), 0)
    cuts = cutter.all(items.requests, {})
    assert [(cut.stage, len(cut.requests)) for cut in cuts] == [("first", 4), ("first", 2)]


def test_a_job_of_one_stage_holds_back_no_request() -> None:
    items = LiveItems(Programs(once, Options(), Preparer(MODELS).prepare))
    cutter = SegmentCutter(["only"], {"echo": SegmentSize(30)}, {"echo": 8})
    assert cutter.capacity() == 60, "two segments, however few an engine holds"
    for position in range(50):
        items.begin(position, Item(position, f"item-{position}", {}), 0)
    assert [len(cut.requests) for cut in cutter.cuts(items.requests, {}, 0.0)] == [30, 20]


def test_a_model_is_hungry_while_its_next_segment_has_to_wait() -> None:
    items = LiveItems(Programs(chain, Options(), Preparer(MODELS).prepare))
    cutter = SegmentCutter(STAGES, {"echo": SegmentSize(500)}, {"echo": 2 * SLOTS}, pause=1.0)
    lines: dict[str, int] = {}
    hungry = []
    for number, now in enumerate((0.0, 0.5, 1.0)):
        if now < 1.0:
            items.begin(number, Item(number, f"q{number}", {"lengths": [1, 1, 1]}), 100)
        for cut in cutter.cuts(items.requests, lines, now):
            items.requests.issue(cut.requests, cut.first_line)
        hungry.append(cutter.starving(items.requests))
    assert hungry == [[], ["echo"], []]
