"""Plans: a batch answers a sample of its requests, says what all of it would take, and waits."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.rows import until
from tests.support.stacks import RunningStack, a_chat
from tests.support.terminal import batchyard

TOTAL = 400


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
    assert (report["requests"], report["answered"], report["sampled"]) == (TOTAL, 50, True)
    assert report["shares"]["failed"] == {"share": 0, "low": 0, "high": pytest.approx(0.055, abs=0.01)}
    assert len(report["answers"]) == 10 and len(report["odd"]["slowest"]) == 3
    assert report["cost"]["currency"] == "EUR" and float(report["cost"]["low"]) <= float(report["cost"]["sum"])
    stack.client.post(f"/batches/{batch.id}/resume", cast_to=object)
    batch = stack.wait(batch)
    assert [line["custom_id"] for line in stack.lines(batch.output_file_id)] == [f"r{n}" for n in range(TOTAL)]
    used = report["tokens"]["output_tokens"]
    assert used["low"] * 0.9 <= batch.usage.output_tokens <= used["high"] * 1.1
    with pytest.raises(openai.ConflictError, match="has ended"):
        plan_of(stack, batch)


@pytest.mark.local
def test_what_the_sample_has_answered_is_not_computed_again_though_everything_is_killed(
    faulty: RunningStack, faulty_calls: Path
) -> None:
    batch = faulty.submit(requests("logged", "sampled-once"), extra_body={"plan": {"rows": 120}})
    faulty.wait(batch, until=lambda batch: batch.request_counts.completed > 20)
    for process in (*faulty.processes("worker"), *faulty.processes("housekeeper")):
        process.kill()
    batch = faulty.wait(batch, until=sampled)
    assert batch.request_counts.completed == 120
    until(lambda: len(faulty.processes("worker")) > 0)
    for process in (*faulty.processes("worker"), *faulty.processes("web")):
        process.kill()
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


def test_wrong_plans_are_refused(stack: RunningStack) -> None:
    for plan, message in (({"rows": 0}, "rows"), ({"rows": 10**6}, "rows"), ({"row": 5}, "row"), ("100", "plan")):
        with pytest.raises(openai.BadRequestError, match=message):
            stack.submit(requests("echo"), extra_body={"plan": plan})
    batch = stack.submit(requests("echo"))
    with pytest.raises(openai.ConflictError, match="was created without a plan"):
        plan_of(stack, batch)


def test_a_batch_pauses_once_it_surely_exceeds_a_limit_and_goes_on_without_it(stack: RunningStack) -> None:
    lines = [a_chat(f"r{number}", f"stopped after {number}", model="slow") for number in range(TOTAL)]
    batch = stack.submit(lines, extra_body={"stop_when": {"tokens": 300, "failed": 0.1}})
    batch = stack.wait(batch, until=lambda batch: batch.batchyard["paused_at"] is not None)
    assert batch.batchyard["paused_by"] == "its limit of tokens"
    assert batch.batchyard["stop_when"] == {
        **dict.fromkeys(("length", "empty", "invalid", "cost", "tokens")),
        "failed": 0.1,
    }
    events = stack.client.get(f"/batches/{batch.id}/events", cast_to=object)["data"]  # type: ignore[index]
    (stopped,) = [event for event in events if event["type"] == "batch.stopped"]
    assert stopped["data"]["limit"] == {"tokens": 300} and 300 <= stopped["data"]["value"] < 600
    assert batch.request_counts.completed < TOTAL / 2
    stack.client.post(f"/batches/{batch.id}/resume", cast_to=object)
    batch = stack.wait(batch)
    assert batch.request_counts.completed == TOTAL


def test_wrong_limits_are_refused(stack: RunningStack, tmp_path: Path) -> None:
    for limits in ({"failed": 0}, {"failed": 1.5}, {"slow": 0.1}, {"cost": "much"}):
        with pytest.raises(openai.BadRequestError, match=next(iter(limits))):
            stack.submit(requests("echo"), extra_body={"stop_when": limits})
    (tmp_path / "in.jsonl").write_text(json.dumps(a_chat("a", "b")) + "\n")
    address = {"BATCHYARD_URL": stack.url, "BATCHYARD_API_KEY": stack.key}
    wrong = batchyard("submit", tmp_path / "in.jsonl", "--stop-when", "failed", folder=tmp_path, **address)
    assert wrong.returncode == 2 and "--stop-when failed: write KEY=VALUE" in wrong.stderr
