"""The campaign of kills over a job would notice if they changed something, and knows what its jobs ask."""

from __future__ import annotations

import io
import json
import tomllib
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchyard.recipes import Answer, Call, Called, Check, Checked, FlowRecipe, Item, Reply, Wait
from batchyard.recipes.program import Request, play
from recipes import registry
from recipes.gates import BUILT_IN
from recipes.refine.flow import refine
from recipes.refine.options import Refine
from recipes.tools.pool import INTERRUPTED
from store.artifacts import Artifacts
from store.formats import chunks
from tests.chaos import agents, generating, in_flight, refining, relay
from tests.chaos.monitor import CallLog
from tests.chaos.runs import Kill, Run
from tests.recipes.agent.made import echoed
from tests.recipes.generate.made import run as run_rounds

TOOL_ERROR = f"Error: interrupted: {INTERRUPTED['message']}"


class Log:
    """A run of two items of recipe agent whose last turns are under way, by a log of the engine's calls."""

    def __init__(self, folder: Path, artifacts: Artifacts) -> None:
        self.artifacts = artifacts
        self.file = folder / "calls"
        self.calls = CallLog([self.file], agents.name_of)
        self.requests = in_flight.Requests({1: {1: "run1-0.1", 2: "run1-0.0"}, 2: {1: "run1-1.1"}}, artifacts)
        self.run = Run("run1", self.requests.times, results=b"a\nb\n")
        self.stored: dict[int, set[str]] = {1: set(), 2: set()}

    def computes(self, *names: str) -> None:
        """Let the engine begin these requests."""
        with self.file.open("a") as file:
            file.writelines(f"{name} a prompt\n" for name in names)
        self.calls.read()

    def stores(self, segment: int, *lines: int) -> None:
        """Store a chunk with the answers to these lines of a segment."""
        row = {"ok": True, "answer": "", "seconds": 0.5}
        table = pa.Table.from_pylist([{"line": line, **row} for line in lines], schema=chunks.SCHEMA)
        self.stored[segment].add(chunks.write(self.artifacts, table))

    def kill(self, *running: int) -> None:
        """Kill a process while these segments run."""
        segments = [in_flight.Running(segment, frozenset(self.stored[segment])) for segment in running]
        self.run.kills.append(Kill("worker", segments, Counter(self.calls.counts)))

    def audited(self, undisturbed: bytes = b"a\nb\n") -> Run:
        self.run.calls = Counter(self.calls.counts)
        self.run.audit(undisturbed, self.requests)
        return self.run


@pytest.fixture
def log(tmp_path: Path, artifacts: Artifacts) -> Log:
    return Log(tmp_path, artifacts)


def test_a_request_may_be_computed_again_once_for_each_kill_that_cut_it_off(log: Log) -> None:
    log.computes("run1-0.1", "run1-1.1")
    log.kill(1, 2)
    log.computes("run1-0.1", "run1-1.1")
    log.stores(2, 1)
    log.kill(1, 2)
    log.computes("run1-0.1", "run1-0.0")
    run = log.audited()
    assert (run.wrong, run.repeated, run.in_flight) == ([], 3, 3)


@pytest.mark.parametrize("case", ["stored", "not running", "not begun", "not killed"])
def test_a_request_that_no_kill_cut_off_is_not_computed_again(log: Log, case: str) -> None:
    log.computes("run1-0.1", "run1-0.0")
    if case != "not begun":
        log.computes("run1-1.1")
    if case == "stored":
        log.stores(2, 1)
    if case != "not killed":
        log.kill(1, *(() if case == "not running" else (2,)))
    log.computes("run1-1.1", *(["run1-1.1"] if case == "not begun" else []))
    run = log.audited()
    assert run.wrong == ["1 requests were computed again without a kill that cut them off: run1-1.1"]
    assert (run.repeated, run.surplus) == (1, Counter({"run1-1.1": 1}))


def test_what_cut_off_one_request_explains_no_call_of_another(log: Log) -> None:
    log.computes("run1-0.1", "run1-1.1")
    log.kill(1)
    log.computes("run1-0.0", "run1-1.1")
    assert log.audited().surplus == Counter({"run1-1.1": 1})


def test_requests_of_one_name_count_together(log: Log) -> None:
    log.requests.names[2] = {1: agents.INTERRUPTED, 2: agents.INTERRUPTED}
    log.run.requests = log.requests.times
    log.computes("run1-0.1", "run1-0.0")
    log.file.write_text(log.file.read_text() + 2 * f"{TOOL_ERROR}\n")
    log.calls.read()
    log.stores(2, 2)
    log.kill(1, 2)
    log.file.write_text(log.file.read_text() + f"{TOOL_ERROR}\n")
    log.calls.read()
    assert (log.audited().wrong, log.run.repeated) == ([], 1)
    log.file.write_text(log.file.read_text() + f"{TOOL_ERROR}\n")
    log.calls.read()
    assert log.audited().surplus == Counter({agents.INTERRUPTED: 1})


def test_a_request_has_the_name_in_its_plan_that_it_has_in_the_log(artifacts: Artifacts) -> None:
    for program, model, prompt in (
        (refining.program(1), "other", "PASS\nrun1-0.r.v"),
        (agents.program(1), "echo", next(agents.rows(1, "run1"))["prompt"]),
        (agents.program(1), "echo", TOOL_ERROR),
        (relay.program(1), "echo", "run1-0.draft.0 a thought"),
    ):
        named = CallLog([], program.name_of)
        path = Path(tomllib.loads(program.models)["models"][model]["engine_args"]["call_log"])
        names = {name for line in prompt.splitlines() if (name := named.name_of(path, line))}
        assert names == {program.name_in(model, {"messages": [{"role": "user", "content": prompt}]})} != {""}


@pytest.mark.parametrize(
    ("calls", "undisturbed", "message"),
    [
        (["run1-0.1", "run1-1.1"], b"a\nb\n", "1 requests were never asked: run1-0.0"),
        (["run1-0.1", "run1-0.0", "run1-1.1", "run1-1.2"], b"a\nb\n", "1 requests were made up: run1-1.2"),
        (["run1-0.1", "run1-0.0", "run1-1.1"], b"a\nc\n", "line 2 of the results is b, undisturbed c"),
        (
            ["run1-0.1", "run1-0.0", "run1-1.1"],
            b"a\nb\nc\n",
            "the results have 2 lines and 4 bytes, undisturbed 3 and 6",
        ),
    ],
)
def test_the_audit_notices(log: Log, calls: list[str], undisturbed: bytes, message: str) -> None:
    log.computes(*calls)
    assert message in log.audited(undisturbed).wrong


def test_a_job_of_refine_asks_what_its_campaign_expects_and_all_its_items_end_so() -> None:
    program = refining.program(items=120)
    options = Refine.model_validate(refining.OPTIONS)
    calls, ends = Counter[str](), Counter[str]()
    for number, row in enumerate(program.rows("run1")):
        item = Item(number, row["custom_id"], row, total=1000)
        judged: list[Wait] = []

        def answer(request: Request) -> Answer | str:
            """Answer as engine echo does, which notes what it is asked."""
            content = request.body["messages"][-1]["content"]
            if not isinstance(content, str):
                return Answer(ok=False, error={"code": "media_not_allowed"})
            log = refining.OTHERS if request.model == "other" else refining.WRITERS
            names = [refining.name_of(Path(log), line) for line in content.splitlines()]
            calls.update(name for name in names if name)
            return "1" if request.stage == "arbiter" else content

        def gate(check: Check, item: Item = item) -> Checked:
            return Checked(BUILT_IN[check.gate](check.text, item, check.value) is None, check.gate)

        def verdict(wait: Wait, judged: list[Wait] = judged, number: int = number) -> Reply:
            judged.append(wait)
            return Reply(refining.passes(number, len(judged) - 1))

        ends[play(refine, item, options, answer, judge=gate, reply=verdict).state] += 1
    assert calls == program.requests("run1")
    assert ends == program.ends and set(ends) == {"completed", "stuck", "failed"}


def test_a_job_of_agent_asks_what_its_campaign_expects_and_one_with_an_interrupted_call_is_excused(
    tmp_path: Path,
) -> None:
    program = agents.program(items=3)
    (tmp_path / "tools.py").write_text(agents.TOOLS.replace("{calls}", str(tmp_path)).replace("time.sleep", "float"))
    catalogue = registry.load(str(tmp_path))
    recipe = catalogue.recipe("agent")
    assert isinstance(recipe, FlowRecipe)
    options = recipe.options.model_validate(program.body("file-1")["options"])
    asked, interrupted = Counter[str](), {}
    for number, row in enumerate(program.rows("run1")):

        def answer(request: Request) -> Answer:
            line = request.body["messages"][-1]["content"]
            asked[program.name_of(Path("calls"), line)] += 1
            return echoed(Item(0, "", {}), request)

        def called(call: Call, number: int = number) -> Called:
            if number == 2 and call.tool == "book" and call.arguments["left"] == 3:
                return Called(False, error=dict(INTERRUPTED))
            return Called(True, catalogue.tool(call.tool).function(**call.arguments, idempotency_key="key"))

        item = Item(number, row["custom_id"], row)
        result = play(recipe, item, options, answer, call=called)
        line = json.dumps({"custom_id": item.custom_id, "result": result.values}).encode()
        assert program.interrupted is not None
        if excused := program.interrupted(line):
            interrupted[excused[0]] = excused[1]
    assert interrupted == {"2": 6}
    missing = {f"run1-2.{left}" for left in range(agents.TURNS - 6 + 1)}
    assert asked.pop(agents.INTERRUPTED) == 1
    assert asked == {name: times for name, times in program.requests("run1").items() if name not in missing}


@pytest.mark.parametrize(
    ("made", "ended", "in_flight", "wrong"),
    [
        (["count a", "count b", "book c"], {"a": True, "b": True, "c": True}, 0, []),
        (["count a", "count a", "book c"], {"a": True, "c": True}, 1, []),
        (["count a", "count a", "book c"], {"a": True, "c": True}, 0, ["1 calls were made again, 0 in flight"]),
        (["count a", "book c"], {"a": True, "c": False}, 1, []),
        (["count a"], {"a": True, "c": True}, 1, ["1 calls have an outcome, and were never made"]),
        (["count a", "book c", "book c"], {"a": True, "c": True}, 1, ["1 calls to be made once were made again"]),
        (["count a", "count z"], {"a": True}, 1, ["1 calls were made and not recorded"]),
    ],
)
def test_the_audit_of_calls_notices(
    tmp_path: Path, artifacts: Artifacts, made: list[str], ended: dict[str, bool], in_flight: int, wrong: list[str]
) -> None:
    log = tmp_path / "tools"
    log.write_text("".join(f"run1-0.7 {line}\n" for line in made))
    audit = agents.ToolAudit(log, artifacts, in_flight=in_flight)
    tools = {"a": "count", "b": "count", "c": "book"}
    rows = [
        *({"kind": "call", "value": json.dumps({"key": key, "tool": tools[key]})} for key in ended),
        *({"kind": "called", "value": json.dumps({"key": key, "ok": ok})} for key, ok in ended.items()),
    ]
    journal = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), journal)
    problems = audit.wrong(journal.getvalue())
    assert [problem[: len(start)] for problem, start in zip(problems, wrong, strict=True)] == wrong


def test_a_job_of_generate_has_its_rows_for_exactly_the_requests_that_its_campaign_expects(tmp_path: Path) -> None:
    def echo(_: Item, request: Request) -> str:
        return str(request.body["messages"][-1]["content"])

    options = generating.body("file-1")["options"]
    report, results, _ = run_rounds(tmp_path, echo, rows=list(generating.rows("run1")), **options)
    assert (report.metrics["good"], report.metrics["requests"]) == (generating.COUNT, generating.BUDGET)
    assert sum(generating.requests("run1").values()) == generating.BUDGET
    candidates = [line["candidate"] for line in results.lines("provenance.jsonl")]
    assert len(set(candidates)) == generating.COUNT
