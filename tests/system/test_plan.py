"""Plans: a batch answers a sample of its requests, says what all of it would take, and waits."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import openai
import pytest
import requests as requests_client

import batchyard as batchyard_client
from batchyard.client.api import ApiClient
from batchyard.errors import ConfigurationError
from batchyard.local.process import kill
from tests.support.rows import until
from tests.support.stacks import RunningStack, a_chat
from tests.support.terminal import batchyard

TOTAL = 400
LONG = 2000
"""Requests of model `slow`, which take 25 s: a limit of few tokens stops them before."""


def requests(model: str, prefix: str = "planned") -> list[dict[str, Any]]:
    return [
        a_chat(f"r{number}", f"{prefix} " * (1 + number % 40) + str(number), model=model) for number in range(TOTAL)
    ]


def plan_of(stack: RunningStack, batch: Any) -> dict[str, Any]:
    report: dict[str, Any] = stack.client.get(f"/batches/{batch.id}/plan", cast_to=object)  # type: ignore[assignment]
    return report


def sampled(batch: Any) -> bool:
    return bool(batch.batchyard["plan"]["sampled"])


def test_a_batch_with_a_plan_waits_after_its_sample_and_answers_the_rest_once_it_is_resumed(
    stack: RunningStack,
) -> None:
    lines = requests("other")
    lines[7] |= {"body": lines[7]["body"] | {"max_tokens": 1}}
    batch = stack.submit(lines, extra_body={"plan": {"rows": 50}})
    assert batch.batchyard["plan"] == {"rows": 50, "sampled": False}
    batch = stack.wait(batch, until=sampled)
    assert (batch.status, batch.request_counts.completed, batch.batchyard["paused_by"]) == (
        "in_progress",
        50,
        "its plan",
    )
    report = plan_of(stack, batch)
    assert (report["requests"], report["sample"]["answered"], report["sampled"]) == (TOTAL, 50, True)
    forecast = report["forecast"]
    assert forecast["shares"]["failed"] == {"share": 0, "low": 0, "high": pytest.approx(0.045, abs=0.01)}
    assert len(report["sample"]["answers"]) == 10 and len(report["sample"]["odd"]["slowest"]) == 3
    assert forecast["cost"]["currency"] == "EUR" and float(forecast["cost"]["low"]) <= float(forecast["cost"]["sum"])
    tokens = {name: forecast["tokens"][name]["sum"] for name in ("input_tokens", "output_tokens")}
    assert float(forecast["hosted"]["api"]["sum"]) == pytest.approx(
        (0.5 * tokens["input_tokens"] + 2 * tokens["output_tokens"]) / 1e6
    )
    stack.client.post(f"/batches/{batch.id}/resume", cast_to=object)
    batch = stack.wait(batch)
    assert [line["custom_id"] for line in stack.lines(batch.output_file_id)] == [f"r{n}" for n in range(TOTAL)]
    used = forecast["tokens"]["output_tokens"]
    assert used["low"] * 0.9 <= batch.usage.output_tokens <= used["high"] * 1.1
    with pytest.raises(openai.ConflictError, match="has ended"):
        plan_of(stack, batch)


# The first two tests of test_faults.py kill processes amid a batch without a plan: what was answered is not run again.
@pytest.mark.exhaustive
@pytest.mark.local
def test_what_the_sample_has_answered_is_not_computed_again_though_everything_is_killed(
    faulty: RunningStack, faulty_calls: Path
) -> None:
    batch = faulty.submit(requests("logged", "sampled-once"), extra_body={"plan": {"rows": 120}})
    faulty.wait(batch, until=lambda batch: batch.request_counts.completed > 20)
    kill([*faulty.processes("worker"), *faulty.processes("housekeeper")])
    batch = faulty.wait(batch, until=sampled)
    assert batch.request_counts.completed == 120
    until(lambda: len(faulty.processes("worker")) > 0)
    kill([*faulty.processes("worker"), *faulty.processes("web")])
    until(lambda: resumed(faulty, batch), seconds=60)
    batch = faulty.wait(batch)
    assert Counter(line["custom_id"] for line in faulty.lines(batch.output_file_id)) == {
        f"r{n}": 1 for n in range(TOTAL)
    }
    computed = Counter(line for line in faulty_calls.read_text().splitlines() if "sampled-once" in line)
    repeated = sum(count - 1 for count in computed.values())
    assert len(computed) == TOTAL and repeated <= 2 * 16, "what was in flight at the two kills, and nothing else"


def resumed(stack: RunningStack, batch: Any) -> bool:
    try:
        return bool(stack.client.post(f"/batches/{batch.id}/resume", cast_to=object))
    except openai.APIError:
        return False


def test_the_command_shows_answers_and_says_how_to_go_on(stack: RunningStack, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in requests("failing")))
    address = {"BATCHYARD_URL": stack.url, "BATCHYARD_API_KEY": stack.key}
    shown = batchyard("plan", tmp_path / "in.jsonl", "--rows", "60", folder=tmp_path, **address)
    assert shown.returncode == 0, shown.stderr
    assert "60 of 400 requests answered; ranges hold with 90% confidence" in shown.stdout
    assert "failed  " in shown.stdout and "`batchyard resume batch_" in shown.stdout
    assert "answers the other 340" in shown.stdout
    (tmp_path / "few.csv").write_text("prompt\none\ntwo\n")
    few = batchyard("plan", tmp_path / "few.csv", "-m", "echo", "--json", folder=tmp_path, **address)
    assert few.returncode == 0, few.stderr
    batch = json.loads(few.stdout)
    assert batch["status"] == "completed", "it has no more requests than the sample"


def test_models_answer_the_same_sample_and_are_compared(stack: RunningStack, tmp_path: Path) -> None:
    asked = {"structured_outputs": {"json": {"type": "object"}}}
    lines = [line | {"body": line["body"] | asked} for line in requests("echo", "compared")]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ("plan", tmp_path / "in.jsonl", "--rows", "60", "-m", "other", "-m", "failing")
    address = {"BATCHYARD_URL": stack.url, "BATCHYARD_API_KEY": stack.key}
    newest = stack.client.batches.list(limit=1).data[0].id
    unknown = batchyard(*command, "-m", "nobody", folder=tmp_path, **address)
    assert unknown.returncode == 2 and "does not serve 'nobody'" in unknown.stderr
    assert stack.client.batches.list(limit=1).data[0].id == newest, "nothing was created"
    shown = batchyard(*command, "--json", folder=tmp_path, **address)
    assert shown.returncode == 0, shown.stderr
    other, failing = json.loads(shown.stdout)
    assert (other["models"], failing["models"]) == (["other"], ["failing"])
    names = [[one["custom_id"] for one in report["sample"]["answers"]] for report in (other, failing)]
    assert names[0] == names[1], "the same requests"
    shares = [report["forecast"]["shares"] for report in (other, failing)]
    assert shares[0]["failed"]["share"] == 0 < shares[1]["failed"]["share"]
    assert (shares[0]["invalid"]["share"], shares[0]["empty"]["share"]) == (1, 0)
    assert other["forecast"]["cost"]["currency"] == "EUR" and failing["forecast"]["cost"] is None
    stack.client.batches.cancel(failing["batch_id"])
    stack.client.post(f"/batches/{other['batch_id']}/resume", cast_to=object)
    batch = stack.wait(stack.client.batches.retrieve(other["batch_id"]))
    assert (batch.status, batch.request_counts.completed) == ("completed", TOTAL)
    shown = batchyard(*command[:3], "500", *command[4:], folder=tmp_path, **address)
    assert shown.returncode == 0, shown.stderr
    rows = {line[:20].strip(): line.split("  ") for line in shown.stdout.splitlines()}
    assert [cell.strip() for cell in rows["answered"] if cell.strip()] == ["answered", "400", "400"]
    assert "no price" in rows["cost"][-1] and "EUR" in str(rows["cost"])


def test_a_job_with_a_plan_waits_after_its_sample_and_runs_the_other_items_once_it_is_resumed(
    stack: RunningStack, tmp_path: Path
) -> None:
    rows = [{"prompt": f"item {n} of the plan", "answer": f"item {n // 2 * 2} of the plan"} for n in range(90)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ("model=other", "n=2", "reward=exact", "ground_truth=answer")
    address = {"BATCHYARD_URL": stack.url, "BATCHYARD_API_KEY": stack.key}
    command = ("job", "create", "rollout", tmp_path / "rows.jsonl", *options)
    shown = batchyard(*command, "--plan", "30", folder=tmp_path, **address)
    assert shown.returncode == 0, shown.stderr
    assert "cost at api  " in shown.stdout
    assert "30 of 90 items answered" in shown.stdout and "answers the other 60" in shown.stdout
    job = stack.client.get("/jobs?limit=1", cast_to=object)["data"][0]  # type: ignore[index]
    path = f"/jobs/{job['id']}"
    assert (job["status"], job["request_counts"]["completed"], job["request_counts"]["total"]) == (
        "in_progress",
        30,
        90,
    )
    assert (job["batchyard"]["paused_by"], job["batchyard"]["plan"]) == ("its plan", {"rows": 30, "sampled": True})
    assert [stage["issued"] for stage in job["batchyard"]["stages"]] == [60]
    report: Any = stack.client.get(f"{path}/plan", cast_to=object)
    forecast = report["forecast"]
    assert (report["requests"], report["sample"]["answered"], report["models"]) == (90, 30, ["other"])
    assert forecast["shares"]["stuck"]["share"] == 0 < forecast["shares"]["wrong"]["share"] < 1
    assert forecast["tokens"]["output_tokens"]["sum"] == 90 * 2 * 5 and forecast["cost"]["currency"] == "EUR"
    with requests_client.Session() as browser:
        assert browser.post(f"{stack.url}/sign-in", data={"key": stack.key}, timeout=30).ok
        assert "30 of 90 items were drawn at random" in browser.get(f"{stack.url}{path}", timeout=30).text
    events: Any = stack.client.get(f"{path}/events", cast_to=object)
    assert "job.planned" in [event["type"] for event in events["data"]]
    stack.client.post(f"{path}/resume", cast_to=object)
    job = stack.wait_for_job(stack.client.get(path, cast_to=object))  # type: ignore[arg-type]
    assert (job["status"], job["request_counts"]["completed"]) == ("completed", 90)
    assert [stage["issued"] for stage in job["batchyard"]["stages"]] == [180], "nothing was asked twice"
    used = forecast["tokens"]["input_tokens"]
    assert used["low"] * 0.9 <= job["usage"]["input_tokens"] <= used["high"] * 1.1
    with pytest.raises(openai.ConflictError, match="is not paused by its plan"):
        stack.client.get(f"{path}/plan", cast_to=object)
    shown = batchyard(*command, "--plan", "90", "--wait", "--json", folder=tmp_path, **address)
    assert shown.returncode == 0 and json.loads(shown.stdout)["batchyard"]["plan"] == {"rows": 90, "sampled": True}
    (tmp_path / "rows.jsonl").write_text('{"custom_id": "a", "prompt": "one"}\n' * 2)
    shown = batchyard(*command, "--plan", "30", folder=tmp_path, **address)
    assert shown.returncode == 1 and " is failed: line 1" in shown.stderr
    with pytest.raises(openai.BadRequestError, match="has no rows of its own"):
        body = {"recipe": "experiment", "input": {"prompts": ["a"]}, "plan": {"rows": 1}}
        variants = {name: {"model": name} for name in ("echo", "other")}
        body["options"] = {"recipe": "rollout", "options": {"reward": "exact"}, "variants": variants}
        stack.client.post("/jobs", body=body, cast_to=object)


def test_wrong_plans_are_refused(stack: RunningStack) -> None:
    for plan, message in (({"rows": 0}, "rows"), ({"rows": 10**6}, "rows"), ({"row": 5}, "row"), ("100", "plan")):
        with pytest.raises(openai.BadRequestError, match=message):
            stack.submit(requests("echo"), extra_body={"plan": plan})
    batch = stack.submit(requests("echo"))
    with pytest.raises(openai.ConflictError, match="was created without a plan"):
        plan_of(stack, batch)


def check_resuming(stack: RunningStack, batch_id: str, path: str) -> None:
    """Check that a paused batch stands still and goes on once resumed; cancel it."""

    def segments() -> list[dict[str, Any]]:
        return list(stack.client.get(f"/batches/{batch_id}/segments", cast_to=object)["data"])  # type: ignore[index]

    until(lambda: {segment["state"] for segment in segments()} <= {"pending", "done"})
    before = sum(segment["answered"] for segment in segments())
    assert before < LONG
    stack.client.post(f"{path}/resume", cast_to=object)
    until(lambda: sum(segment["answered"] for segment in segments()) > before)
    stack.client.post(f"{path}/cancel", cast_to=object)


def test_a_batch_pauses_once_it_surely_exceeds_a_limit_and_goes_on_without_it(stack: RunningStack) -> None:
    lines = [a_chat(f"r{number}", f"stopped after {number}", model="slow") for number in range(LONG)]
    batch = stack.submit(lines, extra_body={"stop_when": {"tokens": 300, "failed": 0.1}})
    batch = stack.wait(batch, until=lambda batch: batch.batchyard["paused_at"] is not None)
    assert batch.batchyard["paused_by"] == "its limit of tokens"
    assert batch.batchyard["stop_when"] == {
        **dict.fromkeys(("length", "empty", "invalid", "looped", "cost", "tokens")),
        "failed": 0.1,
    }
    events = stack.client.get(f"/batches/{batch.id}/events", cast_to=object)["data"]  # type: ignore[index]
    (stopped,) = [event for event in events if event["type"] == "batch.stopped"]
    assert stopped["data"]["limit"] == {"tokens": 300} and stopped["data"]["value"] >= 300
    check_resuming(stack, batch.id, f"/batches/{batch.id}")


def test_a_job_pauses_once_its_batches_surely_exceed_a_limit_and_goes_on_without_it(
    stack: RunningStack, tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"stopped {n}"}) + "\n" for n in range(LONG)))
    address = {"BATCHYARD_URL": stack.url, "BATCHYARD_API_KEY": stack.key}
    command = ("job", "create", "rollout", tmp_path / "rows.jsonl", "model=slow", "reward=exact", "ground_truth=prompt")
    limits = ("--stop-when", "tokens=300", "--stop-when", "cost=40")
    shown = batchyard(*command, *limits, "--json", folder=tmp_path, **address)
    assert shown.returncode == 0, shown.stderr
    assert "stop_when.cost counts nothing of models without a price: slow" in shown.stderr
    path = f"/jobs/{json.loads(shown.stdout)['id']}"

    job: dict[str, Any] = {}

    def is_paused() -> bool:
        job.update(stack.client.get(path, cast_to=object))  # type: ignore[call-overload]
        return job["batchyard"]["paused_at"] is not None

    until(is_paused)
    assert (job["status"], job["batchyard"]["paused_by"]) == ("in_progress", "its limit of tokens")
    assert (job["batchyard"]["stop_when"]["cost"], job["batchyard"]["stop_when"]["tokens"]) == (40, None)
    events: Any = stack.client.get(f"{path}/events", cast_to=object)
    (stopped,) = [event for event in events["data"] if event["type"] == "job.stopped"]
    assert stopped["data"]["limit"] == {"tokens": 300} and stopped["data"]["value"] >= 300
    (stage,) = job["batchyard"]["stages"]
    check_resuming(stack, stage["batch_id"], path)


def test_a_batch_whose_answers_are_all_cut_off_is_stopped_within_three_percent(stack: RunningStack) -> None:
    lines = [a_chat(f"r{number}", f"cut off {number}", model="worded") for number in range(10_000)]
    for line in lines:
        line["body"] |= {"max_tokens": 6}  # 3 s, so that 3 % take half a minute
    batch = stack.submit(lines, extra_body={"stop_when": {"length": 0.3}})
    batch = stack.wait(batch, until=lambda batch: batch.batchyard["paused_at"] is not None)
    assert batch.batchyard["paused_by"] == "its limit of length"
    until(lambda: stack.client.batches.retrieve(batch.id).batchyard["state"]["name"] == "paused")  # type: ignore[attr-defined]
    batch = stack.wait(stack.client.batches.cancel(batch.id))
    assert 0 < batch.request_counts.completed <= 0.03 * len(lines)


def test_wrong_limits_are_refused(stack: RunningStack, tmp_path: Path) -> None:
    for limits in ({"failed": 0}, {"failed": 1.5}, {"slow": 0.1}, {"cost": "much"}):
        with pytest.raises(openai.BadRequestError, match=next(iter(limits))):
            stack.submit(requests("echo"), extra_body={"stop_when": limits})
    (tmp_path / "in.jsonl").write_text(json.dumps(a_chat("a", "b")) + "\n")
    address = {"BATCHYARD_URL": stack.url, "BATCHYARD_API_KEY": stack.key}
    wrong = batchyard("submit", tmp_path / "in.jsonl", "--stop-when", "failed", folder=tmp_path, **address)
    assert wrong.returncode == 2 and "--stop-when failed: write KEY=VALUE" in wrong.stderr


def test_a_table_is_planned_in_python_and_the_same_call_of_map_answers_the_rest(stack: RunningStack) -> None:
    server = ApiClient(stack.url, stack.key)
    table = [{"n": number} for number in range(TOTAL)]
    asked: dict[str, Any] = {"model": "echo", "max_tokens": 4, "server": server, "progress": False}
    for _ in range(2):  # the second call takes up the first one's batch
        report = batchyard_client.plan(table, "row {n} of the plan", rows=40, **asked)
        assert report is not None and (report["requests"], report["sample"]["answered"]) == (TOTAL, 40)
    assert report["forecast"]["tokens"]["output_tokens"]["sum"] == 5 * TOTAL, "echo repeats five words"
    assert batchyard_client.map(table, "row {n} of the plan", **asked) == [f"row {n} of the plan" for n in range(TOTAL)]
    batch = stack.client.batches.retrieve(report["batch_id"])
    assert (batch.status, batch.request_counts.completed) == ("completed", TOTAL)  # type: ignore[union-attr]
    assert batchyard_client.plan(table, "row {n} of the plan", rows=40, **asked) is None, "all is answered"
    assert batchyard_client.plan(table[:5], "few {n}", rows=40, **asked) is None
    reports = batchyard_client.plan(table, "two of row {n}", rows=40, **asked | {"model": ["echo", "other"]})
    assert [report["models"] for report in reports] == [["echo"], ["other"]]
    with pytest.raises(ConfigurationError, match="does not serve 'nobody'"):
        batchyard_client.plan(table, "three of row {n}", rows=40, **asked | {"model": ["echo", "nobody"]})
    with pytest.raises(ConfigurationError, match="do not fit in one batch"):
        batchyard_client.plan([{"n": 1}] * 50_001, "{n}", **asked)
