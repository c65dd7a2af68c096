"""A batch ends with every line once in the right file, whoever dies on the way and whatever fails after."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from batchyard import signatures
from batchyard.errors import BatchyardError
from store import batches, speeds
from store.formats.results import ResultRow
from store.leases import acquire_batch
from store.records import Batch, Event, File, Segment
from tasks.app import app
from tasks.context import AppContext
from tasks.finishing import finalize, manifest
from tasks.steps.step import Results, StepOptions
from tests.support.messages import SentMessages
from tests.support.planned import answers, finish_segment, plan_batch, reload
from tests.support.steps import add_step

HERE, THERE = "here/1/task", "there/1/task"


@pytest.fixture
def new_answered(context: AppContext, project: str, sent: SentMessages) -> Callable[..., Batch]:
    """Makes a batch of three requests, finalizing, of whose lines these were answered."""

    def make(*lines: int, failed: dict[int, str] | None = None, steps: tuple[str, ...] = ()) -> Batch:
        batch = plan_batch(context, project, ["one", "two", "three"], post_process=steps)
        finish_segment(context, batch, answers(lines, failed=failed))
        finalize.start_ready(context)
        assert sent.ids("finish")[-1:] == [batch.id]
        return reload(context.database, batch)

    return make


def artifacts(context: AppContext, batch: Batch) -> dict[str, bytes]:
    with context.database.read() as session:
        records = batches.artifacts(session, [batch.id])[batch.id]
    return {artifact.name: context.artifacts.read(file.sha256) for artifact, file in records}


def lines(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.splitlines()]


def events(context: AppContext, batch: Batch) -> list[str]:
    with context.database.read() as session:
        return list(session.scalars(select(Event.type).where(Event.batch_id == batch.id).order_by(Event.id)))


def finish(context: AppContext, batch: Batch) -> Batch:
    """Merge a batch, run its steps and end it, as the chain of messages does."""
    assert finalize.merge(context, batch.id, HERE)
    for position in range(len(batch.post_process)):
        assert finalize.run_step(context, batch.id, position, HERE)
    finalize.end(context, batch.id, HERE)
    return reload(context.database, batch)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_batch_whose_input_is_lost_or_damaged_has_its_answers(
    context: AppContext, new_answered: Callable[..., Batch], damaged: bool
) -> None:
    batch = new_answered(1, 2, 3)
    path = Path(context.artifacts.path(batch.input_sha256))
    path.write_bytes(path.read_bytes()[:-1]) if damaged else path.unlink()
    batch = finish(context, batch)
    assert (batch.status, batch.rows_sha256) == ("completed", None)
    assert len(lines(artifacts(context, batch)["output.jsonl"])) == 3


def test_the_manifest_is_signed_once_the_deployment_has_a_key(
    context: AppContext, new_answered: Callable[..., Batch], tmp_path: Path
) -> None:
    key = tmp_path / "signing.key"
    context = replace(context, settings=context.settings.model_copy(update={"signing_key_file": str(key)}))
    assert signatures.ENVELOPE not in artifacts(context, finish(context, new_answered(1, 2, 3)))
    key.write_text(signatures.new_key_file([]))
    files = artifacts(context, finish(context, new_answered(1, 2, 3)))
    content = files[manifest.NAME]
    assert signatures.problem(files[signatures.ENVELOPE], content, signatures.read(key)) is None
    names = ["input", "output.jsonl", "manifest.json"]
    statement = json.loads(base64.b64decode(json.loads(files[signatures.ENVELOPE])["payload"]))
    assert [subject["name"] for subject in statement["subject"]] == names
    assert "unsigned" not in json.loads(content)
    key.write_text("no key")
    files = artifacts(context, finish(context, new_answered(1, 2, 3)))
    assert signatures.ENVELOPE not in files
    assert json.loads(files[manifest.NAME])["unsigned"].startswith("the signing key cannot be used: ValueError")


def test_the_manifest_of_a_retry_names_that_of_the_batch_it_came_from(
    context: AppContext, project: str, new_answered: Callable[..., Batch]
) -> None:
    first = finish(context, new_answered(1, 2, 3, failed={2: "engine_error"}))
    retry = plan_batch(context, project, ["two"], retry_of=first.id)
    finish_segment(context, retry, answers([1]))
    finalize.start_ready(context)
    content = artifacts(context, finish(context, retry))["manifest.json"]
    with context.database.read() as session:
        file = batches.find_artifact(session, project, first.id, manifest.NAME)
    assert file is not None
    named = {first.id: {"file_id": file.id, "sha256": file.sha256}}
    assert json.loads(content)["earlier_manifests"] == named
    assert json.loads(artifacts(context, first)["manifest.json"])["earlier_manifests"] == {}


def test_what_answers_depend_on_is_compared_by_two_manifests() -> None:
    engine = {"name": "vllm", "version": "0.32", "model_sha256": "1", "adapter_sha256 x": "2"}

    def of(source: str = "a", template: str = "x", **changes: str) -> dict[str, Any]:
        config = {"source": source, "engine_args": {"chat_template": template}}
        return {"models": {"mini": {"config": config, "engines": [engine | changes]}}}

    assert manifest.changes(of(), of()) == []
    now = of("b", "y", version="0.33", model_sha256="3", **{"adapter_sha256 x": "4"})
    assert manifest.changes(of(), now) == [
        "mini: engine_args is {'chat_template': 'y'}, and was {'chat_template': 'x'}",
        "mini: source is 'b', and was 'a'",
        "mini: adapter_sha256 x is 4, and was 2",
        "mini: model_sha256 is 3, and was 1",
        "mini: version is 0.33, and was 0.32",
    ]


def test_the_time_of_finishing_is_measured_by_its_steps(
    context: AppContext, new_answered: Callable[..., Batch]
) -> None:
    finish(context, new_answered(1, 2, 3))
    with context.database.read() as session:
        measured = speeds.expected_duration(session, "finish", "", "", 3)
        assert measured is not None and 0 <= measured.seconds < 600  # from the last answer, whose time is rounded
        assert speeds.expected_duration(session, "finish", "", "parquet", 3) is None


def test_finishing_starts_once_all_segments_are_done(context: AppContext, project: str, sent: SentMessages) -> None:
    batch = plan_batch(context, project, ["one", "two"], segment_requests=1, post_process=["score", "parquet"])
    finish_segment(context, batch, answers([1]), number=0)
    finalize.start_ready(context)
    assert (reload(context.database, batch).status, sent.of("finish")) == ("in_progress", [])
    finish_segment(context, batch, answers([2]), number=1)
    finalize.start_ready(context)
    finalize.start_ready(context)
    batch = reload(context.database, batch)
    assert (batch.status, batch.outcome) == ("finalizing", "completed")
    assert sent.of("finish") == [(batch.id, ["score", "parquet"], "in.jsonl")], "one of two callers sends it"


def test_one_small_batch_is_left_to_who_ends_it_and_the_others_are_sent(
    context: AppContext, project: str, sent: SentMessages
) -> None:
    with_step, first, second = (
        plan_batch(context, project, ["one", "two"], post_process=steps) for steps in (["parquet"], [], [])
    )
    for batch in (with_step, first, second):
        finish_segment(context, batch, answers([1, 2]))
    kept = finalize.start_ready(context, keep_one=True)
    assert {*sent.ids("finish"), kept} == {with_step.id, first.id, second.id}
    assert kept in (first.id, second.id)
    finalize.end(context, str(kept), HERE, merge=True)
    batch = reload(context.database, first if kept == first.id else second)
    assert (batch.status, batch.completed, set(artifacts(context, batch))) == (
        "completed",
        2,
        {"output.jsonl", "manifest.json"},
    )
    finalize.end(context, batch.id, THERE, merge=True)  # a message that came late
    assert events(context, batch) == ["batch.completed"]


def test_a_large_batch_is_always_sent(
    context: AppContext, project: str, sent: SentMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finalize, "SMALL_REQUESTS", 1)
    batch = plan_batch(context, project, ["one", "two"])
    finish_segment(context, batch, answers([1, 2]))
    assert finalize.start_ready(context, keep_one=True) is None
    assert sent.ids("finish") == [batch.id]


def test_a_cancelled_batch_is_finished_without_its_steps(context: AppContext, project: str, sent: SentMessages) -> None:
    batch = plan_batch(context, project, ["one"], post_process=["score"])
    with context.database.write() as session:
        batches.cancel(session, project, batch.id)
    finalize.start_ready(context)
    assert sent.of("finish") == [(batch.id, [], "in.jsonl")]


def test_every_line_is_in_the_right_file_and_counted(context: AppContext, new_answered: Callable[..., Batch]) -> None:
    batch = finish(context, new_answered(3, 1, 2, failed={2: "too_long"}))
    assert (batch.status, batch.completed, batch.failed, batch.expired, batch.cancelled) == ("completed", 2, 1, 0, 0)
    files = artifacts(context, batch)
    assert [line["custom_id"] for line in lines(files["output.jsonl"])] == ["r1", "r3"]
    assert [line["custom_id"] for line in lines(files["errors.jsonl"])] == ["r2"]
    with context.database.read() as session:
        by_id = {file.id: file.filename for file in session.scalars(select(File))}
    assert by_id[batch.output_file_id or ""] == f"{batch.id}_output.jsonl"
    assert by_id[batch.error_file_id or ""] == f"{batch.id}_errors.jsonl"
    assert events(context, batch) == ["batch.completed"]


@pytest.mark.parametrize(
    ("failed", "names"),
    [({}, {"output.jsonl", "manifest.json"}), ({1: "x", 2: "x", 3: "x"}, {"errors.jsonl", "manifest.json"})],
)
def test_a_file_without_lines_is_no_file(
    context: AppContext, new_answered: Callable[..., Batch], failed: dict[int, str], names: set[str]
) -> None:
    batch = finish(context, new_answered(1, 2, 3, failed=failed))
    assert set(artifacts(context, batch)) == names
    assert (batch.output_file_id is None, batch.error_file_id is None) == (bool(failed), not failed)


@pytest.mark.parametrize(("answered", "message"), [((1, 3), "lines without an answer"), ((1, 2, 2, 3), "4 answers")])
def test_a_batch_that_lacks_a_line_or_has_one_twice_publishes_nothing(
    context: AppContext, new_answered: Callable[..., Batch], answered: tuple[int, ...], message: str
) -> None:
    batch = new_answered(*answered)
    with pytest.raises(BatchyardError, match=message):
        finalize.merge(context, batch.id, HERE)
    batch = reload(context.database, batch)
    assert (batch.status, batch.holder, artifacts(context, batch)) == ("finalizing", None, {})


@pytest.mark.parametrize(("status", "code"), [("expired", "batch_expired"), ("cancelled", "batch_cancelled")])
def test_lines_that_were_never_run_say_why(
    context: AppContext, project: str, sent: SentMessages, status: str, code: str
) -> None:
    batch = plan_batch(context, project, ["one", "two", "three"], segment_requests=2)
    finish_segment(context, batch, answers([1, 2], failed={2: "too_long"}))
    with context.database.write() as session:
        if status == "cancelled":
            batches.cancel(session, project, batch.id)
        else:
            session.execute(update(Batch).values(expires_at=int(time.time()) - 1))
            assert batches.expire(session) == [batch.id]
    finalize.start_ready(context)
    assert sent.ids("finish") == [batch.id]
    batch = finish(context, batch)
    assert (batch.status, batch.completed, batch.failed, getattr(batch, status)) == (status, 1, 1, 1)
    assert batch.expired + batch.cancelled == 1
    errors = lines(artifacts(context, batch)["errors.jsonl"])
    assert [(line["custom_id"], line["error"] and line["error"]["code"]) for line in errors] == [
        ("r2", None),
        ("r3", code),
    ]


def test_a_batch_that_somebody_else_finishes_is_left_alone(
    context: AppContext, new_answered: Callable[..., Batch]
) -> None:
    batch = new_answered(1, 2, 3, steps=("parquet",))
    with context.database.write() as session:
        lease = acquire_batch(session, batch.id, THERE, 60)
    assert lease is not None
    assert not finalize.merge(context, batch.id, HERE)
    assert not finalize.run_step(context, batch.id, 0, HERE)
    finalize.end(context, batch.id, HERE)
    batch = reload(context.database, batch)
    assert (batch.status, batch.holder, artifacts(context, batch)) == ("finalizing", THERE, {})
    with context.database.write() as session:
        lease.guard(session)


def test_a_batch_that_has_ended_is_left_alone(context: AppContext, new_answered: Callable[..., Batch]) -> None:
    batch = finish(context, new_answered(1, 2, 3, steps=("parquet",)))
    before = artifacts(context, batch)
    assert not finalize.merge(context, batch.id, HERE)
    assert not finalize.run_step(context, batch.id, 0, HERE)
    finalize.end(context, batch.id, HERE)
    assert artifacts(context, batch) == before
    assert events(context, batch) == ["batch.completed"]


def test_each_link_of_the_chain_may_run_twice(context: AppContext, new_answered: Callable[..., Batch]) -> None:
    batch = new_answered(1, 2, 3, failed={2: "too_long"}, steps=("parquet",))

    def content() -> dict[str, tuple[str, str]]:
        with context.database.read() as session:
            records = batches.artifacts(session, [batch.id])[batch.id]
        return {artifact.name: (file.id, file.sha256) for artifact, file in records}

    assert finalize.merge(context, batch.id, HERE)
    merged = content()
    assert finalize.merge(context, batch.id, HERE)
    assert content() == merged
    assert finalize.run_step(context, batch.id, 0, HERE)
    stepped = content()
    assert finalize.run_step(context, batch.id, 0, HERE)
    assert {name: file_id for name, (file_id, _) in content().items()} == {
        name: file_id for name, (file_id, _) in stepped.items()
    }
    finalize.end(context, batch.id, HERE)
    ended = content()
    finalize.end(context, batch.id, HERE)
    assert content() == ended


def test_a_step_that_fails_is_recorded_and_the_batch_completes(
    context: AppContext, new_answered: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_results: Results, _options: StepOptions) -> None:
        raise ValueError("no such column")

    add_step(monkeypatch, "broken", broken)
    batch = finish(context, new_answered(1, 2, 3, steps=("broken", "parquet")))
    assert (batch.status, batch.output_file_id is not None) == ("completed", True)
    assert batch.post_process == [
        {"step": "broken", "status": "failed", "error": "ValueError: no such column"},
        {"step": "parquet", "status": "completed"},
    ]
    assert "results.parquet" in artifacts(context, batch)


def test_a_step_whose_package_was_uninstalled_is_recorded_and_the_batch_completes(
    context: AppContext, project: str, sent: SentMessages
) -> None:
    batch = plan_batch(context, project, ["one"], post_process=["gone", "parquet"])
    finish_segment(context, batch, answers([1]))
    finalize.start_ready(context)
    assert sent.of("finish") == [(batch.id, [finalize.UNINSTALLED, "parquet"], "in.jsonl")], (
        "a task that every worker knows"
    )
    assert f"post.{finalize.UNINSTALLED}" in app.tasks
    batch = finish(context, batch)
    assert batch.status == "completed"
    assert [entry["status"] for entry in batch.post_process] == ["failed", "completed"]
    assert "no step is named 'gone'" in batch.post_process[0]["error"]


def test_a_step_that_runs_again_forgets_its_failure(
    context: AppContext, new_answered: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: list[Exception | None] = [OSError("disk full"), None]

    def unsteady(_results: Results, _options: StepOptions) -> None:
        if error := outcomes.pop(0):
            raise error

    add_step(monkeypatch, "unsteady", unsteady)
    batch = new_answered(1, 2, 3, steps=("unsteady",))
    finalize.merge(context, batch.id, HERE)
    finalize.run_step(context, batch.id, 0, HERE)
    assert reload(context.database, batch).post_process[0]["status"] == "failed"
    finalize.run_step(context, batch.id, 0, HERE)
    assert reload(context.database, batch).post_process == [{"step": "unsteady", "status": "completed"}]


def test_a_step_sees_every_request_with_what_became_of_it(
    context: AppContext, new_answered: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = []
    add_step(monkeypatch, "reader", lambda results, _options: rows.extend(results.rows()))
    batch = finish(context, new_answered(1, 2, 3, failed={2: "too_long"}, steps=("reader",)))
    assert batch.post_process[0]["status"] == "completed"
    assert [(row.line, row.custom_id, row.status_code, row.text) for row in rows] == [
        (1, "r1", 200, "to r1"),
        (2, "r2", 400, None),
        (3, "r3", 200, "to r3"),
    ]
    assert [row.body["messages"][0]["content"] for row in rows] == ["one", "two", "three"]
    assert [row.seconds for row in rows] == [0.5, 0.5, 0.5]


def test_a_request_that_was_never_run_has_no_seconds(
    context: AppContext, project: str, monkeypatch: pytest.MonkeyPatch, sent: SentMessages
) -> None:
    rows: list[ResultRow] = []
    add_step(monkeypatch, "reader", lambda results, _options: rows.extend(results.rows()))
    batch = plan_batch(context, project, ["one", "two", "three"], post_process=["reader"])
    finish_segment(context, batch, answers([3, 1]))
    with context.database.write() as session:
        session.execute(update(Batch).where(Batch.id == batch.id).values(expires_at=0))
        session.execute(update(Segment).where(Segment.batch_id == batch.id).values(state="pending"))
        batches.expire(session)
    finalize.start_ready(context)
    assert finish(context, batch).status == "expired"
    assert [(row.line, row.seconds) for row in rows] == [(1, 0.5), (2, None), (3, 0.5)]


def test_the_manifest_of_a_batch_is_the_same_bytes_each_time(
    context: AppContext, new_answered: Callable[..., Batch]
) -> None:
    batch = finish(context, new_answered(1, 2, 3, failed={2: "too_long"}))
    content = artifacts(context, batch)["manifest.json"]
    with_timings = json.loads(content)
    with context.database.read() as session:
        assert manifest.build(session, batch, batch.status) == content
    assert (with_timings["batch_id"], with_timings["status"], with_timings["simulated"]) == (
        batch.id,
        "completed",
        True,
    )
    assert [output["name"] for output in with_timings["outputs"]] == ["errors.jsonl", "output.jsonl"]
    assert [output["lines"] for output in with_timings["outputs"]] == [1, 2]
    assert with_timings["counts"] == {"total": 3, "completed": 2, "failed": 1, "expired": 0, "cancelled": 0}
    assert with_timings["models"]["echo"]["engines"] == [{"name": "echo", "version": "1"}]
    assert with_timings["input"]["sha256"] == batch.input_sha256
    latency = with_timings["latency"]
    assert [latency["requests"], latency["p50"], latency["p99"]] == pytest.approx([3, 0.5, 0.5], rel=0.02)
    assert latency["models"]["echo"]["classes"]["decode"] == {
        key: latency[key] for key in ("requests", "p50", "p95", "p99")
    }


@pytest.mark.races
def test_a_cancellation_that_wins_the_race_against_the_end_ends_as_cancelled(
    context: AppContext, new_answered: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, build, statuses = new_answered(1, 2, 3), manifest.build, []

    def cancelled_meanwhile(session: Session, batch: Batch, status: str) -> bytes:
        if not statuses:
            with context.database.write() as other:
                batches.cancel(other, batch.project_id, batch.id)
        statuses.append(status)
        return build(session, batch, status)

    monkeypatch.setattr(manifest, "build", cancelled_meanwhile)
    batch = finish(context, batch)
    assert statuses == ["completed", "cancelled"]
    assert (batch.status, batch.completed, batch.completed_at, batch.cancelled) == ("cancelled", 3, None, 0)
    assert batch.output_file_id is not None, "what was answered is kept"
    assert json.loads(artifacts(context, batch)["manifest.json"])["status"] == "cancelled"
    assert events(context, batch) == ["batch.cancelled"]


@pytest.mark.parametrize("link", ["merge", "step", "end"])
def test_an_expired_batch_that_is_cancelled_on_its_way_has_lines_that_say_so(
    context: AppContext, project: str, sent: SentMessages, monkeypatch: pytest.MonkeyPatch, link: str
) -> None:
    def cancelling(link: Callable[..., Any]) -> Callable[..., Any]:
        def cancelled_meanwhile(*arguments: Any) -> Any:
            value = link(*arguments)
            with context.database.write() as session:
                batches.cancel(session, project, batch.id)
            return value

        return cancelled_meanwhile

    batch = plan_batch(context, project, ["one", "two"], segment_requests=1, post_process=["parquet", "parquet"])
    finish_segment(context, batch, answers([1]))
    with context.database.write() as session:
        session.execute(update(Batch).values(expires_at=int(time.time()) - 1, due_at=int(time.time()) - 1))
        assert batches.expire(session) == [batch.id]
    finalize.start_ready(context)
    module, name = {"merge": (finalize.result_files, "merge"), "step": (finalize.registry, "run")}.get(
        link, (manifest, "build")
    )
    monkeypatch.setattr(module, name, cancelling(getattr(module, name)))
    batch = finish(context, batch)
    assert (batch.status, batch.completed, batch.expired, batch.cancelled) == ("cancelled", 1, 0, 1)
    files = artifacts(context, batch)
    (line,) = lines(files["errors.jsonl"])
    assert (line["custom_id"], line["error"]["code"]) == ("r2", "batch_cancelled")
    assert json.loads(files["manifest.json"])["counts"]["cancelled"] == 1
    assert set(files) == {"output.jsonl", "errors.jsonl", "manifest.json"}, "no table says that the batch expired"
    assert batch.post_process == [{"step": "parquet"}, {"step": "parquet"}]
    assert (events(context, batch), batch.sla) == (["batch.cancelled"], "on_track")


def test_a_worker_whose_lease_is_gone_publishes_nothing(
    context: AppContext, new_answered: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, merge = new_answered(1, 2, 3), finalize.result_files.merge

    def taken_over(*arguments: Any) -> Any:
        with context.database.write() as session:
            session.execute(update(Batch).values(lease_expires_at=0.0))
            assert acquire_batch(session, batch.id, THERE, 60) is not None
        return merge(*arguments)

    monkeypatch.setattr(finalize.result_files, "merge", taken_over)
    with pytest.raises(BatchyardError, match="is gone"):
        finalize.merge(context, batch.id, HERE)
    assert (reload(context.database, batch).holder, artifacts(context, batch)) == (THERE, {})
