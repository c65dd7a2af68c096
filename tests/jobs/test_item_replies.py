"""Items that wait for people and CI, or need them: what a reply does, when it is refused, and what is told of them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest
from sqlalchemy import update

from batchyard.errors import ConflictError, NotFoundError
from jobs import finish, item_replies, messages
from jobs.items import detail
from jobs.running import notices, tick
from jobs.running.segments import SegmentCutter
from store import events, projects
from store.batches import PLAN
from store.jobs import lifecycle
from store.keys import Principal
from store.records import Event, Job
from store.work.lifecycle import Verb
from tasks.context import AppContext
from tests.support.running_jobs import Running

GATED = """
@recipe("two", Options, stages=("draft",), loops=True)
def two(item: Item, options: Options) -> Flow:
    (draft,) = yield [Ask("draft", item.chat(), model="echo")]
    while True:
        reply = yield Wait("verdict", gate="house", draft=draft.text)
        if reply.passed:
            return Result(text=draft.text, by=reply.by)
        if reply.category == "hopeless":
            return item.stuck("hopeless", reply.message, draft=draft.text)
        (draft,) = yield [Ask("draft", f"{item.number} {reply.message}", model="echo")]
"""


class Judged(Running):
    """A job whose drafts are answered, so that each item waits for a verdict."""

    def __init__(
        self, context: AppContext, project: str, prompts: Sequence[str], sample_rows: int | None = None
    ) -> None:
        super().__init__(context, project, prompts, sample_rows)
        self.caller = Principal(project, admin=False, key_id="key_1", name="ours")
        self.tick()
        self.answer("draft")
        self.tick()

    def verdict(self, number: int, *, passed: bool = True, gate: str = "house", **values: Any) -> None:
        body = {"gate": gate, "passed": passed, **values}
        item_replies.give_verdict(self.context, self.caller, self.id, number, body)

    def put_back(self, number: int, hint: str | None = None) -> None:
        item_replies.put_back(self.context, self.caller, self.id, number, hint)

    def resolve(self, number: int, text: str, by: str | None = None) -> None:
        item_replies.resolve(self.context, self.caller, self.id, number, text, by)

    def stick(self, *numbers: int) -> None:
        """Let these items be stuck."""
        for number in numbers:
            self.verdict(number, passed=False, category="hopeless", message="No.")
        self.tick()

    def events(self, type_: str) -> list[Event]:
        with self.context.database.read() as session:
            recorded, _ = events.page(session, self.job, after=None, limit=100)
        return [event for event in recorded if event.type == type_]

    def update(self, **values: Any) -> None:
        with self.context.database.write() as session:
            session.execute(update(Job).where(Job.id == self.id).values(**values))

    def due(self) -> bool:
        """True if housekeeping would wake the job now."""
        with self.context.database.write() as session:
            return lifecycle.claim_advanceable(session, 5.0) == [self.id]

    def page(self, number: int) -> detail.ItemDetails:
        return detail.item(self.context, self.job, number)


@pytest.fixture
def judged(deployed: Callable[[str], AppContext], project: str) -> Judged:
    return Judged(deployed(GATED), project, ["a", "b", "c"])


def test_items_wait_until_a_verdict_comes_and_go_on_after_a_crash(judged: Judged) -> None:
    assert (judged.job.waiting_for_verdict, judged.states()) == (3, ["waiting_for_verdict"] * 3)
    assert (judged.page(1).reason, judged.page(1).waits_for) == ("house", {"gate": "house", "draft": "b"})
    judged.crash()
    judged.verdict(0, by="Ann")
    judged.verdict(1, passed=False, message="mend")
    judged.tick()
    assert (judged.job.waiting_for_verdict, judged.states()) == (1, ["completed", "live", "waiting_for_verdict"])
    judged.crash()  # the verdicts are recorded now, and are taken once
    judged.tick()
    assert judged.issued()["draft"] == ["item-0/draft.1.0", "item-1/draft.1.0", "item-1/draft.2.0", "item-2/draft.1.0"]
    judged.answer("draft", 1)
    judged.tick()
    for number in (1, 2):
        judged.verdict(number)
    judged.tick()
    ends = judged.ends()
    assert (judged.job.status, judged.job.completed, judged.job.waiting_for_verdict) == ("finalizing", 3, 0)
    assert [orjson.loads(ends[f"item-{n}"]["result"])["text"] for n in range(3)] == ["a", "1 mend", "c"]
    assert orjson.loads(ends["item-0"]["result"])["by"] == "Ann"
    rows = [(row["number"], row["turn"], row["kind"]) for row in judged.journal() if row["kind"] != "request"]
    assert rows == [(0, 2, "verdict"), (1, 2, "verdict"), (1, 4, "verdict"), (2, 2, "verdict")]


def test_a_verdict_is_given_once_to_an_item_that_waits_for_it(judged: Judged) -> None:
    with pytest.raises(ConflictError, match="waits for a verdict of gate 'house', not of 'hous'"):
        judged.verdict(0, gate="hous")
    with pytest.raises(NotFoundError, match="no item 3"):
        judged.verdict(3)
    with judged.context.database.write() as session:
        other = projects.get_or_create(session, "other").id
    own, judged.caller = judged.caller, dataclasses.replace(judged.caller, project_id=other)
    for reply in (judged.verdict, judged.put_back, lambda number: judged.resolve(number, "x")):
        with pytest.raises(NotFoundError, match="No job"):
            reply(0)
    judged.caller = own
    judged.verdict(0)
    with pytest.raises(ConflictError, match="has its verdict already") as refused:
        judged.verdict(0, passed=False)
    assert refused.value.code == "already_replied"
    judged.tick()
    with pytest.raises(ConflictError, match="Item 0 is completed: it waits for no verdict"):
        judged.verdict(0)
    assert [(reply.turn, reply.kind, reply.body["passed"]) for reply in judged.page(0).replies] == [
        (2, "verdict", True)
    ]


def test_a_job_that_only_waits_rests_until_a_reply_a_cancellation_or_the_end_of_its_window(judged: Judged) -> None:
    judged.update(lease_expires_at=0.0)
    assert judged.due()
    judged.tick()
    assert judged.job.lease_expires_at > time.time() + tick.WAITING_SECONDS / 2
    assert not judged.due()
    judged.verdict(0)
    assert judged.due()
    judged.tick()
    assert not judged.due()
    judged.update(expires_at=int(time.time()) - 1)
    with judged.context.database.write() as session:
        assert lifecycle.expire(session) == [judged.id]
    judged.tick()
    judged.finish()
    job = judged.job
    assert (job.status, job.completed, job.expired_items, job.waiting_for_verdict) == ("expired", 1, 2, 0)
    assert judged.states() == ["completed", "expired", "expired"]
    with pytest.raises(ConflictError, match="is expired; its items wait for no verdict any more"):
        judged.verdict(1)


def test_items_begin_as_verdicts_come_while_those_that_wait_fill_the_window(
    deployed: Callable[[str], AppContext], project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SegmentCutter, "capacity", lambda cutter: 20)
    context = deployed(GATED)
    context = dataclasses.replace(context, settings=context.settings.model_copy(update={"job_window_bytes": 10_000}))
    judged = Judged(context, project, ["prompt"] * 60)
    begun = judged.job.admitted
    judged.tick(3)
    assert judged.job.admitted == judged.job.waiting_for_verdict == begun < 60
    for number in range(begun):
        judged.verdict(number)
    judged.tick()
    assert (judged.job.completed, judged.job.waiting_for_verdict) == (begun, 0)
    assert judged.job.admitted > begun


def test_a_job_that_its_plan_pauses_asks_nothing_more_until_it_is_resumed(
    deployed: Callable[[str], AppContext], project: str
) -> None:
    planned = Judged(deployed(GATED), project, ["a", "b", "c"], sample_rows=2)
    assert (planned.job.paused_by, planned.job.admitted, planned.job.waiting_for_verdict) == (PLAN, 2, 2)
    planned.verdict(0, passed=False, message="mend")
    planned.tick()
    assert planned.issued()["draft"][-2:] == ["item-0/draft.2.0", "item-1/draft.1.0"]
    assert planned.paused() == [PLAN]
    planned.control("resume")
    planned.tick()
    assert (planned.job.admitted, planned.paused()) == (3, [None])


@pytest.mark.parametrize("verb", ["resume", "cancel"])
def test_who_resumes_or_cancels_a_job_amid_the_tick_that_pauses_it_does_not_wait(
    deployed: Callable[[str], AppContext], project: str, monkeypatch: pytest.MonkeyPatch, verb: Verb
) -> None:
    planned = Running(deployed(GATED), project, ["a", "b"], sample_rows=1)
    planned.tick()
    planned.answer("draft")
    monkeypatch.setattr(tick.progress, "publish", lambda *_: planned.control(verb))
    planned.tick()
    assert planned.job.lease_expires_at <= time.time()


def test_a_job_that_rests_is_cancelled_at_once(judged: Judged) -> None:
    judged.update(lease_expires_at=time.time() + 60)
    with judged.context.database.write() as session:
        lifecycle.cancel(session, judged.caller.project_id, judged.id)
    assert judged.due()


@pytest.mark.usefixtures("frozen_time")
def test_items_that_wait_or_are_stuck_are_told_of_once_in_ten_seconds(
    judged: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = judged.events("job.gate_pending")
    named = [{"number": number, "custom_id": f"item-{number}"} for number in range(3)]
    assert sorted(item["number"] for item in first.data["items"]) == [0, 1, 2]
    assert (first.data["count"], first.data["gate"]) == (3, "house")
    judged.stick(0)
    assert [event.data["items"] for event in judged.events("job.stuck")] == [named[:1]]
    judged.stick(1)
    judged.verdict(2, passed=False, message="mend")
    judged.tick()
    judged.answer("draft", 2)
    judged.tick()
    assert (len(judged.events("job.gate_pending")), len(judged.events("job.stuck"))) == (1, 1)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + notices.HELP_SECONDS)
    judged.tick(2)
    monkeypatch.undo()
    assert [event.data for event in judged.events("job.gate_pending")[1:]] == [
        {"id": judged.id, "count": 1, "gate": "house", "items": named[2:]}
    ]
    assert [event.data for event in judged.events("job.stuck")[1:]] == [
        {"id": judged.id, "count": 2, "items": named[1:2]}
    ]


def test_an_item_that_was_put_back_begins_its_next_life_with_the_hint(judged: Judged) -> None:
    judged.stick(0, 1)
    assert (judged.job.stuck, judged.states()[:2]) == (2, ["stuck", "stuck"])
    judged.put_back(0, "Be kind.")
    with pytest.raises(ConflictError, match="put back already"):
        judged.put_back(0)
    with pytest.raises(ConflictError, match="put back already"):
        judged.resolve(0, "text")
    judged.crash()
    judged.tick()
    assert (judged.job.stuck, judged.states()) == (1, ["live", "stuck", "waiting_for_verdict"])
    assert judged.page(0).life == 2
    judged.crash()
    judged.tick()
    assert judged.issued()["draft"] == [f"item-{n}/draft.1.0" for n in ("0#2", "0", "1", "2")]
    turn = judged.page(0).turns[-1]
    assert [message["content"] for message in turn.requests[0].body["messages"]] == ["a", "Be kind."]
    judged.answer("draft")
    judged.tick()
    with pytest.raises(ConflictError, match="Item 0 is waiting_for_verdict; only items that are stuck or failed"):
        judged.put_back(0)
    judged.verdict(0)
    judged.put_back(1)
    judged.tick()
    judged.answer("draft")
    judged.tick()
    for number in (1, 2):
        judged.verdict(number)
    judged.tick()
    job = judged.job
    assert (job.status, job.completed, job.stuck, job.restarted) == ("finalizing", 3, 0, 0)
    assert [row["value"] for row in judged.journal() if row["kind"] == "requeue"] == [
        '{"hint":"Be kind.","state":"stuck"}',
        '{"hint":null,"state":"stuck"}',
    ]
    with pytest.raises(ConflictError, match=r"is completed; retry its items in a new job: POST /v1/jobs/job_\w+/retry"):
        judged.put_back(0)


def test_an_item_that_is_put_back_as_the_last_one_ends_keeps_its_job_going(
    judged: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged.stick(0)
    for number in (1, 2):
        judged.verdict(number)
    admit = tick._admit

    def late(*arguments: Any) -> None:
        judged.put_back(0)
        admit(*arguments)

    monkeypatch.setattr(tick, "_admit", late)
    judged.tick()  # reads the verdicts before the item is put back
    monkeypatch.setattr(tick, "_admit", admit)
    assert (judged.job.status, judged.job.completed, judged.job.stuck) == ("in_progress", 2, 1)
    judged.tick()
    assert (judged.job.stuck, judged.states()) == (0, ["live", "completed", "completed"])


def test_a_person_completes_a_stuck_item_while_the_job_runs(judged: Judged) -> None:
    judged.stick(0)
    with pytest.raises(ConflictError, match="Item 1 is waiting_for_verdict; only items that are stuck or failed"):
        judged.resolve(1, "text")
    judged.resolve(0, "mine", by="Ann")
    with pytest.raises(ConflictError, match="Item 0 is completed; only items"):
        judged.resolve(0, "other")
    job = judged.job
    assert (job.status, job.completed, job.stuck, job.amendments) == ("in_progress", 1, 0, 0)
    page = judged.page(0)
    assert (page.state, page.error) == ("completed", None)
    assert page.result == {"text": "mine", "draft": "a", "resolved_by": "Ann"}
    judged.crash()
    for number in (1, 2):
        judged.verdict(number)
    judged.tick()
    assert [row["kind"] for row in judged.journal() if row["number"] == 0] == ["request", "verdict", "resolve"]
    assert (judged.job.status, judged.job.completed) == ("completed", 3)


def test_an_item_that_is_completed_after_the_jobs_end_has_new_files(
    judged: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        judged.verdict(number)
    judged.stick(0)
    with pytest.raises(ConflictError, match="is finalizing; wait until it has ended"):
        judged.resolve(0, "early")
    judged.finish()
    before = judged.files()
    assert not finish.run(judged.context, judged.id, "here/1/task")
    sent: list[str] = []
    monkeypatch.setattr(messages, "finish", sent.append)
    judged.resolve(0, "late")
    judged.update(lease_expires_at=0.0)
    messages.finish_ready(judged.context)  # should the message be lost
    assert sent == [judged.id] * 2
    judged.finish()
    messages.finish_ready(judged.context)
    assert len(sent) == 2 and not finish.run(judged.context, judged.id, "here/1/task")
    job, after = judged.job, judged.files()
    assert (job.status, job.completed, job.stuck, job.amendments, job.unwritten) == ("completed", 3, 0, 1, 0)
    results = [orjson.loads(line) for line in judged.context.artifacts.read(after["results.jsonl"].sha256).splitlines()]
    assert results[0]["state"] == "completed"
    assert results[0]["result"] == {"text": "late", "draft": "a", "resolved_by": "key_1"}
    manifests = [
        orjson.loads(judged.context.artifacts.read(files["manifest.json"].sha256)) for files in (before, after)
    ]
    assert [manifest["amendments"] for manifest in manifests] == [0, 1]
    assert before["results.jsonl"].id != after["results.jsonl"].id
    assert len(judged.events("job.completed")) == 1
