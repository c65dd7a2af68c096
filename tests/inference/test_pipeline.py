"""pipeline.run on a real Ray cluster: every row answered exactly once, whatever its engine does."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import ray
from ray.actor import ActorHandle

from batchyard.errors import EngineError, EngineStartError, Stopped
from batchyard.models import ModelSpec
from inference import pipeline
from inference.answers import ANSWERS, Death
from inference.ray import isolation, starts
from inference.residents import directory, gpu_eviction
from inference.residents.session import EngineTimeouts
from tests.support.rows import chat, table, until

CHAT = "/v1/chat/completions"
TIMEOUTS = EngineTimeouts(request_timeout=30, start_timeout=240, idle_seconds=600)
pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(scope="module", autouse=True)
def no_engine_left(cluster: str) -> Iterator[None]:
    yield
    directory.stop_all()


@pytest.fixture(autouse=True)
def no_engine_but_the_plain_one_left(cluster: str) -> Iterator[None]:
    """Each engine takes a process: the one without arguments stays for the tests that do it no harm."""
    yield
    until(lambda: not kill_engines())  # the next test may count them


def kill_engines() -> list[str]:
    """Kill the engines but for the plain one. Return the names of those that there were."""
    there = engines()
    for handle in there.values():
        ray.kill(handle)
    return list(there)


def echo(name: str = "echo", **fields: Any) -> ModelSpec:
    arguments = {key: fields.pop(key) for key in list(fields) if key not in ModelSpec.model_fields}
    return ModelSpec(name=name, engine="echo", engine_args=arguments, **fields)


def run(
    spec: ModelSpec,
    bodies: list[dict[str, Any]],
    request_timeout: float = 30,
    on_death: Callable[[Death], None] | None = None,
    **timeouts: Any,
) -> dict[int, Any]:
    """The output line of each row, which must be exactly one."""
    limits = replace(TIMEOUTS, request_timeout=request_timeout, **timeouts)
    lines: dict[int, Any] = {}
    for answers in pipeline.run(spec, CHAT, table(bodies), limits, on_death=on_death):
        for row in answers.to_pylist():
            assert row["line"] not in lines, "answered twice"
            lines[row["line"]] = {**row, **json.loads(row["answer"])}
    assert sorted(lines) == list(range(len(bodies)))
    return lines


def content(line: dict[str, Any]) -> str:
    content: str = line["response"]["body"]["choices"][0]["message"]["content"]
    return content


def engines() -> dict[str, ActorHandle]:
    """The engines that run, but for the plain one."""
    plain = directory.actor_name(echo(), TIMEOUTS.request_timeout, 0)
    return {name: handle for name, handle in directory.engine_actors().items() if name != plain}


def engine_pid(spec: ModelSpec, request_timeout: float = 30) -> int:
    pid: int = directory.states(60.0)[directory.actor_name(spec, request_timeout, 0)].process["pid"]
    return pid


def test_a_worker_keeps_nothing_of_the_runs_that_it_has_made() -> None:
    def kept() -> Counter[str]:
        gc.collect()
        return Counter(type(thing).__name__ for thing in gc.get_objects())

    bodies = chat(*(f"hello {index}" for index in range(300)))  # more than an engine takes at once
    run(echo(), bodies)
    before = kept()
    for _ in range(3):
        run(echo(), bodies)
    names = ("RemoteFunction", "PythonFunctionDescriptor", "_ActorClassMethodMetadata", "Dataset", "StreamingExecutor")
    until(lambda: not set(names).intersection(kept() - before))  # the threads of the last run end after it


def test_every_row_is_answered_once_with_its_own_answer() -> None:
    texts = [f"hello {index}" for index in range(700)]
    lines = run(echo(), chat(*texts))
    assert [content(lines[index]) for index in range(700)] == texts
    line = lines[3]
    assert line["custom_id"] == "row-3" and line["ok"] and line["error"] is None
    assert line["response"]["status_code"] == 200 and line["response"]["body"]["simulated"] is True
    assert (line["input_tokens"], line["cached_tokens"], line["output_tokens"]) == (2, 0, 2)
    assert len({line["id"] for line in lines.values()}) == 700
    assert len({line["response"]["request_id"] for line in lines.values()}) == 700


# The next test shows it of a run's other answers and one that is late.
@pytest.mark.exhaustive
def test_answers_of_a_slow_engine_come_as_they_are_ready() -> None:
    rows = table(chat(*map(str, range(24))))
    slow = echo(latency_ms=1100, max_in_flight=8)
    sizes = [answers.num_rows for answers in pipeline.run(slow, CHAT, rows, TIMEOUTS)]
    assert sum(sizes) == 24 and max(sizes) < 24, "not all three turns together"


@pytest.mark.parametrize("rows", [12, 100], ids=["from this process", "from a Ray task"])
def test_a_long_answer_holds_up_no_other(rows: int) -> None:
    bodies = [*chat("long", max_tokens=60_000), *chat(*["short"] * (rows - 1), max_tokens=5)]
    spec, timeouts = echo(ms_per_token=1, slots=8, max_in_flight=16), replace(TIMEOUTS, request_timeout=120)
    lines: list[int] = []
    with closing(pipeline.run(spec, CHAT, table(bodies), timeouts)) as sent:
        while len(lines) < rows - 1:
            lines += next(sent).column("line").to_pylist()
    assert sorted(lines) == list(range(1, rows)), "all others come before it"


def test_a_run_of_few_rows_needs_no_process_of_its_own() -> None:
    until(lambda: not callers())
    answers = pipeline.run(echo(latency_ms=1000), CHAT, table(chat("a", "b")), TIMEOUTS)
    with ThreadPoolExecutor(1) as pool:
        lines = pool.submit(lambda: [row["line"] for answered in answers for row in answered.to_pylist()])
        while not lines.done():
            assert callers() == []
            time.sleep(0.05)
        assert sorted(lines.result()) == [0, 1]


@pytest.mark.parametrize(
    ("rows", "replicas"), [(12, 1), (400, 2)], ids=["one replica, from this process", "two replicas, from a Ray task"]
)
def test_a_closed_run_ends_with_what_the_engines_have_and_the_next_one_answers_the_rest(
    rows: int, replicas: int
) -> None:
    spec, paused = echo(ms_per_token=1, max_in_flight=12, replicas=replicas), threading.Event()
    requests, quick = (table(chat(*map(str, range(rows)), max_tokens=tokens)) for tokens in (600, 1))
    closed_at = 0.0
    answered: Counter[int] = Counter()
    for answers in pipeline.run(spec, CHAT, requests, TIMEOUTS, idempotency_key="work", paused=paused):
        answered.update(answers.column("line").to_pylist())
        if not paused.is_set():
            paused.set()
            assert pipeline.close(spec, "work", TIMEOUTS.request_timeout)
            closed_at = time.monotonic()
    # What the engines hold takes 0.6 s, and all rows of the large run take 10 s.
    assert time.monotonic() - closed_at < 0.6 + 30
    assert len(answered) == 12 if rows == 12 else len(answered) < 400
    left = quick.filter(pc.invert(pc.is_in(quick["line"], pa.array(answered))))
    for answers in pipeline.run(spec, CHAT, left, TIMEOUTS, idempotency_key="work"):
        answered.update(answers.column("line").to_pylist())
    assert sorted(answered) == list(range(rows)) and set(answered.values()) == {1}


def test_a_replica_that_a_model_has_not_is_an_error_before_any_start() -> None:
    spec = echo("few", replicas=2)
    with pytest.raises(EngineError, match="has 2 replicas, counted from 0, and none is number 2"):
        next(pipeline.run(spec, CHAT, table(chat("hello")), TIMEOUTS, replica=2))
    assert engines() == {}


def test_no_rows_make_no_engine() -> None:
    assert list(pipeline.run(echo(), CHAT, table([]), TIMEOUTS)) == []
    assert engines() == {}


# tests/contract/test_validation.py and others read such rows in the files of batches.
@pytest.mark.exhaustive
def test_a_refused_row_is_that_rows_400() -> None:
    lines = run(echo(fail_every=10), chat(*map(str, range(100))))
    refused = [line for line in lines.values() if not line["ok"]]
    assert len(refused) == 10
    for line in refused:
        assert line["response"]["status_code"] == 400 and line["error"] is None
        assert set(line["response"]["body"]["error"]) == {"message", "type", "param", "code"}
        assert line["output_tokens"] == 0


# A batch of tests/contract/test_lines.py has such a row, of an engine that other tests ask after it.
@pytest.mark.exhaustive
def test_a_row_that_runs_too_long_has_no_response_and_the_engine_goes_on() -> None:
    spec = echo(latency_ms=60_000)
    lines = run(spec, chat("slow"), request_timeout=0.5)
    assert lines[0]["response"] is None and lines[0]["error"]["code"] == "request_timeout"
    pid = engine_pid(spec, 0.5)
    run(spec, chat("slow"), request_timeout=0.5)
    assert engine_pid(spec, 0.5) == pid


def test_the_engine_stays_for_the_next_run() -> None:
    spec = echo()
    run(spec, chat("one"))
    pid = engine_pid(spec)
    run(spec, chat("two"))
    assert engine_pid(spec) == pid
    assert pipeline.start(spec, TIMEOUTS).versions["engine"] == "echo"
    assert engine_pid(spec) == pid


def test_runs_leave_no_thread_behind_whether_they_end_or_are_closed() -> None:
    spec, rows = echo(), table(chat(*map(str, range(200))))
    run(spec, chat("one"))
    before = threading.active_count()
    for _ in range(3):
        run(spec, chat("another"))
        with closing(pipeline.run(spec, CHAT, rows, TIMEOUTS)) as answers:
            next(answers)
    until(lambda: threading.active_count() <= before)


@pytest.mark.exhaustive
def test_replicas_share_the_rows() -> None:
    spec = echo(replicas=2, latency_ms=50)

    def answered() -> list[int]:
        names = engines()
        return [state.answered for name, state in directory.states().items() if name in names]

    pipeline.start(spec, TIMEOUTS)
    until(lambda: len(answered()) == 2)
    run(spec, chat(*map(str, range(600))))
    assert sum(answered()) == 600 and min(answered()) >= 150


@pytest.mark.exhaustive
def test_a_poison_row_is_found_and_all_others_are_answered(tmp_path: Path) -> None:
    log = tmp_path / "calls"
    texts = [f"fine {index}" for index in range(400)]
    texts[123] = "poison"
    deaths: list[Death] = []
    spec = echo(die_on="poison", call_log=str(log), max_in_flight=8)
    lines = run(spec, chat(*texts), on_death=deaths.append)
    assert lines[123]["response"] is None and lines[123]["error"]["code"] == "engine_died"
    assert "echo" in lines[123]["error"]["message"]
    assert [content(line) for index, line in sorted(lines.items()) if index != 123] == texts[:123] + texts[124:]
    times = Counter(log.read_text().splitlines())
    assert times["poison"] >= 3, "once in a crowd, twice alone"
    assert sum(times.values()) < 400 + 5 * 8, "rows answered before are not run again"
    assert 1 < deaths[0].requests <= 8 and deaths[1].requests == deaths[0].requests and deaths[-1].requests == 1
    assert [death.next for death in deaths] == ["runs_alone"] * (len(deaths) - 1) + ["request_fails"]
    assert len({death.engine for death in deaths}) == len(deaths), "each is told once"


# It starts fifteen engines; test_isolation shows the search for two rows without any.
@pytest.mark.exhaustive
def test_two_poison_rows_in_one_list_are_both_found() -> None:
    texts = ["poison" if index in (0, 17) else f"fine {index}" for index in range(32)]
    lines = run(echo(die_on="poison"), chat(*texts))
    assert [index for index, line in sorted(lines.items()) if not line["ok"]] == [0, 17]


def test_rows_answered_before_a_death_are_not_asked_again(tmp_path: Path) -> None:
    log = tmp_path / "calls"
    spec = echo(latency_ms=100, call_log=str(log), max_in_flight=32)
    killed = False
    lines: list[int] = []
    rows = table(chat(*map(str, range(256))))
    before = Counter[str]()
    for answers in pipeline.run(spec, CHAT, rows, TIMEOUTS):
        lines += answers.column("line").to_pylist()
        if not killed:
            killed = True
            before = Counter(map(str, lines))
            os.kill(engine_pid(spec), signal.SIGKILL)
    assert sorted(lines) == list(range(256))
    times = Counter(log.read_text().splitlines())
    assert all(times[text] == 1 for text in before)
    assert set(times.values()) <= {1, 2}
    assert sum(times.values()) - 256 <= 64, "only what was in the engine is run twice"


DRIVER = """
import json, sys, time
import ray
from tests.support.rows import chat, table
from batchyard.models import ModelSpec
from inference import pipeline
from inference.residents.session import EngineTimeouts
ray.init(address=sys.argv[1], namespace="batchyard", log_to_driver=False, logging_level="ERROR")
spec = ModelSpec.model_validate_json(sys.argv[2])
terms = json.loads(sys.argv[3])
rows = table(chat(*map(str, range(128))))
for answers in pipeline.run(spec, "/v1/chat/completions", rows, EngineTimeouts(**terms), idempotency_key="work"):
    print(json.dumps(answers.column("line").to_pylist()), flush=True)
    time.sleep(600)  # it is killed here: once the run has ended, the engine keeps nothing
"""


def test_what_a_killed_caller_had_in_the_engine_is_not_run_again(tmp_path: Path, cluster: str) -> None:
    log = tmp_path / "calls"
    spec = echo(latency_ms=500, call_log=str(log), max_in_flight=32)
    command = [sys.executable, "-c", DRIVER, cluster, spec.model_dump_json(), json.dumps(asdict(TIMEOUTS))]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as driver:
        assert driver.stdout is not None
        had = json.loads(driver.stdout.readline())
        until(lambda: len(log.read_text().splitlines()) >= min(len(had) + 1, 128))
        driver.kill()
    rows = table(chat(*map(str, range(128))))
    remaining = rows.filter([line not in had for line in rows.column("line").to_pylist()])
    for answers in pipeline.run(spec, CHAT, remaining, TIMEOUTS, idempotency_key="work"):
        had += answers.column("line").to_pylist()
    assert sorted(had) == list(range(128))
    assert set(Counter(log.read_text().splitlines()).values()) == {1}


@pytest.mark.exhaustive
def test_callers_that_are_killed_lose_and_double_no_row(tmp_path: Path) -> None:
    log = tmp_path / "calls"
    spec = echo(latency_ms=400, call_log=str(log), max_in_flight=32)
    lines: list[int] = []
    killed: list[psutil.Process] = []
    for answers in pipeline.run(spec, CHAT, table(chat(*map(str, range(256)))), TIMEOUTS):
        lines += answers.column("line").to_pylist()
        if not killed and len(lines) > 50:
            killed = callers()
            for process in killed:
                process.kill()
    assert killed
    assert sorted(lines) == list(range(256))
    assert set(Counter(log.read_text().splitlines()).values()) == {1}, "the engine keeps what it had in hand"


def test_an_engine_that_hangs_is_killed_and_its_row_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "STRIKES", 1)  # test_isolation shows the search itself
    lines = run(echo(hang_on="hang"), chat("hang"), request_timeout=1, hang_margin=0.5)
    assert (lines[0]["ok"], lines[0]["error"]["code"]) == (False, "engine_died")
    assert "answered nothing for 1.5 seconds and was killed" in lines[0]["error"]["message"]


def test_an_engine_that_cannot_start_says_why_and_is_not_kept() -> None:
    with pytest.raises(EngineStartError, match="no such weights"):
        run(echo(start_error="no such weights"), chat("hi"))
    until(lambda: engines() == {})


def test_engines_that_find_no_room_are_a_start_error_within_the_start_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_eviction, "PLACING_SECONDS", 0.2)
    monkeypatch.setattr(starts, "fits_no_node", lambda _gpus: False)  # there are GPUs, and others have them
    with pytest.raises(EngineStartError, match=r"did not start within 0\.2 seconds"):
        run(echo(num_gpus=1, replicas=2), chat("hi"), start_timeout=0.2)
    until(lambda: engines() == {})


def test_a_death_is_told_as_it_happens_with_what_was_in_the_engine_and_what_follows() -> None:
    spec, rows = echo(latency_ms=200, max_in_flight=12), table(chat(*map(str, range(2000))))  # for half a minute
    deaths: list[Death] = []
    with closing(pipeline.run(spec, CHAT, rows, TIMEOUTS, on_death=deaths.append)) as answers:
        next(answers)
        os.kill(engine_pid(spec), signal.SIGKILL)
        while not deaths:
            assert next(answers).schema == ANSWERS, "a death is no answer"
    (death,) = deaths
    assert (death.model, death.replica, death.next) == ("echo", 0, "runs_alone")
    assert 0 < death.requests <= 12 and death.reason


@pytest.mark.exhaustive
def test_an_engine_that_always_dies_ends_the_run_and_its_last_death_says_so() -> None:
    deaths: list[Death] = []
    with pytest.raises(EngineError, match="died"):
        run(echo(die_on="", max_in_flight=3), chat("one", "two", "three"), on_death=deaths.append)
    assert [death.next for death in deaths].index("ends_run") == len(deaths) - 1 > 3


def test_an_engine_that_ends_at_each_start_is_told_of_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    deaths: list[Death] = []
    spec = echo(name="ending")
    monkeypatch.setattr(starts, "get_or_create_engine", lambda *_: Ending.remote())
    monkeypatch.setattr(starts, "ATTEMPTS", 2)
    with pytest.raises(EngineStartError, match=r"ended each time it was started: .+"):
        pipeline.start(spec, TIMEOUTS, on_death=deaths.append)
    assert [death.next for death in deaths] == ["starts_again"] * starts.ATTEMPTS
    assert {death.requests for death in deaths} == {0}


@ray.remote(max_restarts=0)
class Ending:
    """An engine's actor whose process ends at each start."""

    async def ready(self, _: float) -> None:
        os._exit(7)


def test_closing_the_run_early_stops_its_work_and_leaves_no_caller(tmp_path: Path) -> None:
    log = tmp_path / "calls"
    spec = echo(latency_ms=300, call_log=str(log), max_in_flight=32)
    rows = table(chat(*map(str, range(2000))))
    answers = pipeline.run(spec, CHAT, rows, TIMEOUTS)
    next(answers)
    answers.close()
    until(lambda: not callers())
    until(lambda: all(state.in_flight == 0 for state in directory.states().values()))
    assert len(log.read_text().splitlines()) < 1000
    assert len(engines()) == 1, "the engine itself stays"


def test_a_run_that_is_stopped_ends_at_once_and_leaves_no_caller() -> None:
    spec, stopped = echo(latency_ms=60_000, max_in_flight=32), threading.Event()
    run(echo(), chat("the cluster is warm"))
    timer = threading.Timer(1.0, stopped.set)
    timer.start()
    began = time.monotonic()
    with pytest.raises(Stopped):
        list(
            pipeline.run(
                spec, CHAT, table(chat(*map(str, range(100)))), replace(TIMEOUTS, request_timeout=60), stopped=stopped
            )
        )
    assert time.monotonic() - began < 1.0 + 40.0, "a request takes 60 s"
    timer.join()
    until(lambda: not callers())
    until(lambda: all(state.in_flight == 0 for state in directory.states().values()))


def test_the_wait_for_an_engine_that_does_not_start_is_stopped_at_once() -> None:
    stopped = threading.Event()
    threading.Timer(0.3, stopped.set).start()
    began = time.monotonic()
    with pytest.raises(Stopped):
        pipeline.start(echo(num_gpus=1), TIMEOUTS, stopped=stopped)
    assert time.monotonic() - began < 60.0, "it would wait for minutes"


def test_runs_in_threads_of_one_process_answer_their_own_rows_and_a_stopped_one_stops_alone() -> None:
    models = [echo("fast"), echo("slow", latency_ms=100, max_in_flight=32)]
    stopped = threading.Event()
    begun = threading.Event()

    def texts(name: str) -> list[str]:
        return [f"{name} {index}" for index in range(200)]

    def answer(name: str) -> list[str]:
        lines = run(models[int(name) % 2], chat(*texts(name)))
        return [content(lines[index]) for index in range(200)]

    def answer_until_stopped() -> int:
        number = 0
        with pytest.raises(Stopped):
            rows = table(chat(*map(str, range(40_000))))
            for answers in pipeline.run(models[1], CHAT, rows, TIMEOUTS, stopped=stopped):
                number += answers.num_rows
                begun.set()
        return number

    with ThreadPoolExecutor(4) as threads:
        victim = threads.submit(answer_until_stopped)
        begun.wait(360)
        futures = {str(number): threads.submit(answer, str(number)) for number in range(3)}
        next(as_completed(futures.values())).result()
        stopped.set()
        assert 0 < victim.result(180) < 40_000
        for name, future in futures.items():
            assert future.result(360) == texts(name)


def callers() -> list[psutil.Process]:
    return processes("ray::MapBatches")


def processes(name: str) -> list[psutil.Process]:
    """The processes below this one whose names begin so; the kernel keeps 15 characters of a name."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if process.name().startswith(name) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def test_an_engine_without_work_stops_by_itself_and_leaves_no_process() -> None:
    spec, before = echo("idle"), processes("ray::EngineActo")
    run(spec, chat("hi"), idle_seconds=1)
    until(lambda: engines() == {}, seconds=60)
    until(lambda: set(processes("ray::EngineActo")) <= set(before))
    assert content(run(spec, chat("again"))[0]) == "again"


def test_the_engines_of_one_model_are_stopped_on_demand_and_no_others() -> None:
    run(echo("one"), chat("hi"))
    run(echo("other"), chat("hi"))
    assert [name.split(":")[1] for name in directory.stop_all("one")] == ["one"]
    until(lambda: [name.split(":")[1] for name in engines()] == ["other"])


# tests/system/test_batch_artifacts.py asks engine transformers through a stack.
@pytest.mark.exhaustive
def test_transformers_answers_through_the_pipeline(tiny: Path) -> None:
    spec = ModelSpec(name="tiny", engine="transformers", source=str(tiny), engine_args={"dtype": "float32"})
    lines = run(spec, chat(*[f"say {index}" for index in range(40)], temperature=0, max_tokens=8))
    assert all(line["ok"] for line in lines.values())
    for line in lines.values():
        usage = line["response"]["body"]["usage"]
        assert (line["input_tokens"], line["output_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    versions = pipeline.start(spec, TIMEOUTS).versions
    assert versions["engine"] == "transformers" and len(versions["model_sha256"]) == 64
