"""The ticks of a job over its records: a recipe that hangs, and one whose file changes."""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
import redis

from batchyard.models import ModelSpec
from batchyard.settings import Settings
from jobs import progress, validation
from jobs.catalogue import catalogue_of
from jobs.items import detail
from jobs.kinds.flow import FLOW
from jobs.running import rebuild, tick, watchdog
from jobs.running.judging import Judges
from store import leases, projects
from store.artifacts import Artifacts
from store.database import Database
from store.formats import job_chunks
from store.jobs import chunk_records, lifecycle
from store.records import Job
from store.work import turns
from tasks.context import AppContext
from tasks.execution import tally
from tests.support.rows import until
from tests.support.running_jobs import HEAD, Running
from tests.support.stacks import ROOT

pytestmark = pytest.mark.usefixtures("alone")

TWO = """
@recipe("two", Options, stages=("draft", "final"))
def two(item: Item, options: Options) -> Flow:
    (draft,) = yield [Ask("draft", item.chat(), model="echo")]
    (final,) = yield [Ask("final", f"final {item.number}", model="echo")]
    return Result(text=final.text)
"""
CHANGED = """
@recipe("two", Options, stages=("outline", "draft", "check", "final"))
def two(item: Item, options: Options) -> Flow:
    (draft,) = yield [Ask("draft", item.chat(), model="echo")]
    checks = yield [Ask("check", f"check {item.number} {n}", model="echo") for n in range(2)]
    (final,) = yield [Ask("final", f"better {item.number}", model="echo")]
    return Result(text=final.text, checks=len(checks))
"""
SCORED = """
@recipe("two", Options, stages=("draft",))
def two(item: Item, options: Options) -> Flow:
    yield [Score("odd", "", item.columns["prompt"], "")]
    (draft,) = yield [Ask("draft", item.chat(), model="echo")]
    return Result(text=draft.text)

@reward("odd")
def odd(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str)
"""
COUNTING = """
@recipe("two", Options, stages=("draft",))
def two(item: Item, options: Options) -> Flow:
    (draft,) = yield [Ask("draft", item.chat(), model="echo")]
    if draft.text == "2":
        return item.failed("two", counters={"seen": 1})
    return Result(draft.text, {"seen": 1})
"""
CALLING = """
import time
from pathlib import Path
from batchyard.recipes import Call, tool

MADE = Path(__file__).with_suffix(".made")

def noted(name, key):
    with MADE.open("a") as file:
        file.write(f"{name} {key}\\n")
    if name in ("look 1", "book 1"):
        time.sleep(60)
    return name

@tool("look", "retriable")
def look(number: int, idempotency_key: str) -> str:
    return noted(f"look {number}", idempotency_key)

@tool("book", "once")
def book(number: int, idempotency_key: str) -> str:
    return noted(f"book {number}", idempotency_key)

@recipe("two", Options, stages=("draft",))
def two(item: Item, options: Options) -> Flow:
    looked, booked = yield [Call("look", number=item.number), Call("book", number=item.number)]
    (draft,) = yield [Ask("draft", item.chat(), model="echo")]
    return Result(draft.text, looked=looked.value, booked=booked.value, error=booked.error and booked.error["code"])
"""
ENDING = """
@recipe("two", Options, stages=("draft",))
def two(item: Item, options: Options) -> Flow:
    if item.columns["prompt"] == "ask":
        yield [Ask("draft", item.chat(), model="echo")]
    return Result(text="done")
"""
HANGING = """
busy = threading.Event()

@recipe("two", Options, stages=("draft",))
def two(item: Item, options: Options) -> Flow:
    if item.columns["prompt"] == "busy":
        busy.set()
        sum(number for number in range(3_000_000))
    if item.columns["prompt"] == "hang":
        busy.wait(1)
        re.match("(a+)+$", 40 * "a" + "b")
    (draft,) = yield [Ask("draft", item.chat(), model="echo")]
    return Result(text=draft.text)
"""


def test_items_begin_their_next_life_when_the_recipes_file_asks_something_else(
    deployed: Callable[[str], AppContext], project: str
) -> None:
    running = Running(deployed(TWO), project, ["a", "b", "c"])
    running.tick()
    running.answer("draft", 0, 1)
    running.tick()
    assert running.issued()["final"] == ["item-0/final.1.0", "item-1/final.1.0"]
    for _ in range(2):  # the second time it is read from what the first has recorded
        running.crash(deployed(CHANGED))
        running.tick()
    assert running.job.restarted == 2
    assert running.issued()["draft"] == [f"item-{n}/draft.1.0" for n in ("0#2", "0", "1#2", "1", "2")]
    running.answer("final")  # of a life that is over
    for stage in ("draft", "check", "final"):
        running.answer(stage)
        running.tick()
        running.crash()
    job, ends = running.job, running.ends()
    assert (job.status, job.completed, job.failed, job.restarted) == ("finalizing", 3, 0, 2)
    assert [end["life"] for _, end in sorted(ends.items())] == [2, 2, 1]
    assert orjson.loads(ends["item-0"]["result"]) == {"text": "better 0", "checks": 2}
    assert len({own.number for own in running.stages()}) == len({own.batch_id for own in running.stages()}) == 3


def test_the_file_that_an_item_went_on_with_last_is_known_when_files_come_back(
    deployed: Callable[[str], AppContext], project: str
) -> None:
    first, second = deployed(TWO), deployed(TWO + "# Changed for nobody.")
    running = Running(first, project, ["a"])
    running.tick()
    for context in (second, first, second):
        running.crash(context)
        running.tick()
        with context.database.read() as session:
            *_, newest = chunk_records.of_job(session, running.id, "judgement")
        (row,) = job_chunks.read(context.artifacts, newest.sha256).to_pylist()
        assert (row["kind"], row["life"]) == (job_chunks.RECIPE, 1)
        assert orjson.loads(row["value"])["recipe_sha256"] == catalogue_of(context).sha256("two")
    assert running.job.restarted == 0


def test_the_journal_says_of_each_request_in_which_life_and_turn_it_was(
    deployed: Callable[[str], AppContext], project: str
) -> None:
    running = Running(deployed(TWO), project, ["a", "b"])
    running.tick()
    running.answer("draft")
    running.tick()
    running.crash(deployed(CHANGED))
    running.tick()
    for stage in ("draft", "check", "final"):
        running.answer(stage)
        running.tick()
    page = detail.item(running.context, running.job, 1)
    assert [(turn.life, turn.turn, [one.stage for one in turn.requests]) for turn in page.turns] == [
        (1, 1, ["draft"]),
        (1, 2, ["final"]),
        (2, 1, ["draft"]),
        (2, 2, ["check", "check"]),
        (2, 3, ["final"]),
    ]
    rows = [row for row in running.journal() if row["number"] == 1]
    assert [(row["life"], row["turn"], row["kind"], row["stage"], row["sample"]) for row in rows] == [
        (1, 1, "request", "draft", 0),
        (1, 2, "request", "final", 0),
        (2, 0, "recipe", None, 0),
        (2, 1, "request", "draft", 0),
        (2, 2, "request", "check", 0),
        (2, 2, "request", "check", 1),
        (2, 3, "request", "final", 0),
    ]


def test_a_recipe_that_differs_without_a_change_of_its_file_fails_its_job(
    deployed: Callable[[str], AppContext], project: str
) -> None:
    running = Running(deployed(TWO), project, ["a"])
    running.tick()
    running.crash(deployed(TWO.replace("item.chat()", "'another'")))
    with running.context.database.write() as session:
        session.get_one(Job, running.id).recipe_sha256 = catalogue_of(running.context).sha256("two")
    running.tick()
    (error,) = running.job.errors or []
    assert (running.job.outcome, error["code"]) == ("failed", "recipe_not_deterministic")


@pytest.mark.long
def test_an_item_in_which_the_recipe_hangs_ends_its_worker_once_and_fails_alone(
    sqlite_url: str, artifacts: Artifacts, tmp_path: Path
) -> None:
    """A regular expression lets no other thread of the process run, not even one that is in a step of another job."""
    folder = tmp_path / "recipes-hanging"
    folder.mkdir()
    (folder / "two.py").write_text(HEAD + HANGING)
    (tmp_path / "models.toml").write_text('[models.echo]\nengine = "echo"\n')
    database = Database(sqlite_url)
    settings = Settings(redis_url="redis://127.0.0.1:1/0", recipes=str(folder))
    broker = redis.Redis.from_url(settings.redis_url, decode_responses=True)
    context = AppContext(settings, {"echo": ModelSpec(name="echo", engine="echo")}, database, artifacts, broker)
    with database.write() as session:
        project = projects.get_or_create(session, "default").id
    running, other = (Running(context, project, prompts) for prompts in (["a", "hang", "b"], ["busy"]))
    script = """
import sys, threading
from tasks.context import context
from tasks.heartbeat import holder
from jobs import app
from jobs.running import tick
admit, both = tick._admit, threading.Barrier(2)
def together(*arguments):
    both.wait(300)  # else the hang may begin while the other job is being written, which nothing ends
    return admit(*arguments)
tick._admit = together
threading.Thread(target=app.advance_leased, args=(context(), sys.argv[2], holder("other"))).start()
app.advance_leased(context(), sys.argv[1], holder("task"))
"""
    environment = {
        **os.environ,
        "DATABASE_URL": sqlite_url,
        "ARTIFACTS_URL": context.artifacts.url,
        "REDIS_URL": context.settings.redis_url,
        "BATCHYARD_RECIPES": str(folder),
        "BATCHYARD_MODELS": str(tmp_path / "models.toml"),
        "BATCHYARD_ALLOW_SIMULATED": "true",
        "BATCHYARD_JUDGE_SECONDS": "2",
    }
    command = [sys.executable, "-c", script, running.id, other.id]
    worker = subprocess.run(command, env=environment, cwd=ROOT, timeout=600, check=False)
    assert worker.returncode == -signal.SIGKILL
    for job in (running.job, other.job):
        assert (job.status, job.holder, job.attempts) == ("in_progress", None, 0)
    running.tick()
    other.tick()
    (end,) = running.ends().values()
    error = orjson.loads(end["error"])
    assert (end["custom_id"], end["state"], error["code"]) == ("item-1", "failed", "recipe_hangs")
    assert error["message"] == "a step of the recipe took longer than 2 seconds (two.py, line 15)"
    assert running.issued() == {"draft": ["item-0/draft.1.0", "item-2/draft.1.0"]}
    assert other.issued() == {"draft": ["item-0/draft.1.0"]}
    running.answer("draft")
    running.tick()
    assert (running.job.outcome, running.job.completed, running.job.failed) == ("completed", 2, 1)
    database.close()


def test_a_recipe_that_hangs_in_its_first_turn_does_not_stop_the_validation(
    new_context: Callable[..., AppContext], project: str, tmp_path: Path
) -> None:
    (tmp_path / "two.py").write_text(HEAD + HANGING)
    running = Running(new_context(recipes=str(tmp_path), judge_seconds=2), project, ["a", *["hang"] * 90])
    with running.context.database.write() as session:
        session.get_one(Job, running.id).status = "validating"
    started_at = time.monotonic()
    assert validation.run(running.context, running.id, "here/1/task")
    assert 2 < time.monotonic() - started_at < 90, "one of them was waited for"
    assert running.job.status == "in_progress"


def hang(running: Running, *positions: int) -> None:
    """Let the watchdog record that a step of each of these items hangs."""
    with running.context.database.write() as session:
        lease = leases.acquire_job(session, running.id, "here/7/task", 60)
        assert lease is not None
    steps = [watchdog.ProgramStep(1, 0, 0, lease.epoch, position, 1, 0, running.id) for position in positions]
    record = functools.partial(watchdog.record, running.context.database, running.context.artifacts)
    record("here/7/", dict.fromkeys(steps, "too long"))


def counting(context: AppContext, broker: str) -> AppContext:
    """Return a context whose totals go to an empty broker."""
    counted = dataclasses.replace(context, redis=redis.Redis.from_url(broker, decode_responses=True))
    counted.redis.flushall()
    return counted


def test_a_reward_that_raises_is_counted_by_its_name(
    deployed: Callable[[str], AppContext], project: str, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = counting(deployed(SCORED), broker)
    monkeypatch.setattr(FLOW.jobs, "_judges", pool := Judges(context.settings.recipes, processes=1, seconds=600.0))
    try:
        Running(context, project, ["1", "one", "2", "two", "3"]).tick()
        until(lambda: tally.read(context) == {("judgement_errors", "odd"): 2})
    finally:
        pool.close()


def test_what_items_end_as_and_what_their_results_count_is_counted_by_recipe(
    deployed: Callable[[str], AppContext], project: str, broker: str
) -> None:
    context = counting(deployed(COUNTING), broker)
    running = Running(context, project, ["1", "2", "3"])
    running.tick()
    running.answer("draft")
    running.tick()
    totals = progress.totals(context)
    assert {key: number for key, number in totals.items() if key[0] in ("items", "counter")} == {
        ("items", "two", "completed"): 2,
        ("items", "two", "failed"): 1,
        ("counter", "two", "seen"): 3,
    }
    assert sum(number for key, number in totals.items() if key[0] == "tick") > 0


def test_a_message_that_comes_late_does_not_finish_a_job_before_its_batches(
    deployed: Callable[[str], AppContext], project: str
) -> None:
    running = Running(deployed(TWO), project, ["a"])
    for stage in ("draft", "final"):
        running.tick()
        running.answer(stage)
    running.tick(2)
    assert running.job.status == "finalizing"
    with running.context.database.read() as session:
        assert not [one for one in turns.oldest(session, "finishing") if one.noun == "job"], "its batches run"


def test_items_that_end_with_their_job_are_counted_once(
    deployed: Callable[[str], AppContext], project: str, broker: str
) -> None:
    context = counting(deployed(COUNTING), broker)
    running = Running(context, project, ["1", "2", "3"])
    running.tick()
    with context.database.write() as session:
        lifecycle.cancel(session, project, running.id)
    running.tick()
    running.finish()
    assert running.job.status == "cancelled"
    totals = progress.totals(context)
    assert {key: number for key, number in totals.items() if key[0] == "items"} == {("items", "two", "cancelled"): 3}


def test_items_that_end_at_once_are_committed_in_parts_that_fit_in_memory(
    deployed: Callable[[str], AppContext], project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tick, "ENDED_ITEMS", 2)
    running = Running(deployed(ENDING), project, ["end", "end", "ask", "end", "end"])
    running.tick()
    assert (running.job.admitted, running.job.completed) == (2, 2)
    running.tick()
    assert (running.job.admitted, running.job.completed) == (5, 4)
    running.answer("draft")
    running.tick()
    assert running.job.completed == 5


def test_large_results_of_items_that_end_at_once_are_committed_in_parts(
    deployed: Callable[[str], AppContext], project: str
) -> None:
    context = deployed(ENDING)
    size = len('{"text":"done"}')
    context = dataclasses.replace(context, settings=context.settings.model_copy(update={"job_window_bytes": 2 * size}))
    running = Running(context, project, ["end"] * 5)
    ended = []
    for _ in range(3):
        running.tick()
        ended.append((running.job.admitted, running.job.completed))
    assert ended == [(2, 2), (4, 4), (5, 5)]


def test_a_recipe_that_hangs_in_many_items_fails_its_job(deployed: Callable[[str], AppContext], project: str) -> None:
    running = Running(deployed(HANGING), project, ["a"] * (rebuild.MOST_HUNG + 1))
    hang(running, *range(rebuild.MOST_HUNG - 1))
    running.tick()
    assert (running.job.status, running.job.failed) == ("in_progress", rebuild.MOST_HUNG - 1)
    hang(running, rebuild.MOST_HUNG - 1)
    running.tick()
    (error,) = running.job.errors or []
    assert (running.job.outcome, error["code"]) == ("failed", "recipe_hangs")
    assert "hangs in 10 items, the last one is 'item-9': too long" in error["message"]


def test_a_hang_in_a_job_that_another_process_has_taken_is_not_recorded(
    deployed: Callable[[str], AppContext], project: str
) -> None:
    running = Running(deployed(HANGING), project, ["a"])
    with running.context.database.write() as session:
        lost = leases.acquire_job(session, running.id, "here/7/task", -1)
        lease = leases.acquire_job(session, running.id, "there/8/task", 60)
        assert lost is not None and lease is not None
    step = watchdog.ProgramStep(1, 0, 0, lost.epoch, 0, 1, 0, running.id)
    watchdog.record(running.context.database, running.context.artifacts, "here/7/", {step: "too long"})
    with running.context.database.write() as session:
        lease.guard(session)
        assert chunk_records.of_job(session, running.id) == []


@pytest.mark.long
def test_a_call_is_recorded_before_it_is_made_and_after_a_crash_only_what_may_be_made_again_is(
    deployed: Callable[[str], AppContext], project: str
) -> None:
    context = deployed(CALLING)
    made = Path(context.settings.recipes) / "two.made"

    def calls() -> list[str]:
        return made.read_text().splitlines() if made.exists() else []

    def kinds(running: Running) -> list[tuple[int, int, str]]:
        with context.database.read() as session:
            stored = chunk_records.of_job(session, running.id, "judgement")
        rows = [row for chunk in stored for row in job_chunks.read(context.artifacts, chunk.sha256).to_pylist()]
        return [(row["position"], row["index"], row["kind"]) for row in rows]

    running = Running(context, project, ["a", "b"])
    running.tick()
    assert sorted(kinds(running)) == [(position, index, "call") for position in (0, 1) for index in (0, 1)]
    until(lambda: len(calls()) == 4)
    until(lambda: running.tick() or running.issued().get("draft") == ["item-0/draft.1.0"])
    FLOW.jobs.drop(running.id)  # memory alone is lost, not the calls
    running.tick()
    assert len(calls()) == 4
    running.crash()
    running.tick()
    until(lambda: len(calls()) == 5)
    made_once, made_twice = sorted(calls(), key=calls().count)[:3], sorted(calls(), key=calls().count)[3:]
    assert len({*made_once}) == 3 and len({*made_twice}) == 1 and made_twice[0].startswith("look 1 ")
    assert kinds(running).count((1, 1, "called")) == 1
    FLOW.jobs.clear()
    made.write_text("")
    running.answer("draft")
    running.tick()
    (ended,) = running.ends().values()
    result = orjson.loads(ended["result"])
    assert (result["looked"], result["booked"], result["error"]) == ("look 0", "book 0", None)
    page = detail.item(context, running.job, 1)
    outcomes = [(one.index, one.kind, one.value.get("tool")) for turn in page.turns for one in turn.judgements]
    assert outcomes == [(1, "call", "look"), (2, "called", "book")]
