"""A batch's life in any order: uploads, creates, cancels, expired windows, deletes, retries and killed processes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import openai
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from batchyard.local import process
from batchyard.statuses import TERMINAL, TRANSITIONS
from tests.support.stacks import PATIENCE, RunningStack, a_chat

TIMES = [f"{status}_at" for status in TRANSITIONS if status != "validating"]


def reachable(status: str) -> set[str]:
    """Return the status and every later one that it can lead to."""
    statuses = {status}
    for successor in TRANSITIONS[status]:
        statuses |= reachable(successor)
    return statuses


class Lifecycle(RuleBasedStateMachine):
    """Batches as a client reads them, and the last state that it has read of each."""

    batches = Bundle("batches")

    def __init__(self, stack: RunningStack) -> None:
        super().__init__()
        self.stack = stack
        self.client = stack.client.with_options(max_retries=8)
        self.http = httpx.Client(
            base_url=stack.url,
            headers={"Authorization": f"Bearer {stack.key}"},
            transport=httpx.HTTPTransport(retries=8),
            timeout=60,
        )
        self.states: dict[str, dict[str, Any]] = {}
        self.requests: dict[str, set[str]] = {}
        self.deleted: set[str] = set()
        self.kills = 0

    @rule(
        target=batches,
        count=st.integers(1, 200),
        model=st.sampled_from(["echo", "slow", "failing"]),
        window=st.sampled_from(["24h", "24h", "3s"]),
    )
    def create(self, count: int, model: str, window: str) -> str:
        lines = [a_chat(f"id-{number}", "x", model=model) for number in range(count)]
        batch = self.stack.submit(lines, completion_window=window)
        self.requests[batch.id] = {f"id-{number}" for number in range(count)}
        self.look(batch.id)
        return str(batch.id)

    @rule(batch_id=batches)
    def cancel(self, batch_id: str) -> None:
        try:
            assert self.client.batches.cancel(batch_id).status in ("cancelling", "cancelled")
        except openai.ConflictError:
            self.look(batch_id)
            assert self.states[batch_id]["status"] in ("completed", "expired")
        self.look(batch_id)

    @rule(batch_id=batches)
    def delete_its_input(self, batch_id: str) -> None:
        file_id = self.states[batch_id]["input_file_id"]
        if file_id not in self.deleted:
            self.client.files.delete(file_id)
            self.deleted.add(file_id)
        self.look(batch_id)

    @rule(target=batches, batch_id=batches)
    def retry(self, batch_id: str) -> Any:
        self.look(batch_id)
        batch = self.states[batch_id]  # it may end before the answer, or after it
        answer = self.http.post(f"/v1/batches/{batch_id}/retry")
        self.look(batch_id)
        if answer.status_code == 409:
            deleted = batch["input_file_id"] in self.deleted
            assert deleted or batch["status"] not in TERMINAL or batch["error_file_id"] is None
            return multiple()
        retried = answer.json()
        self.requests[retried["id"]] = {
            line["custom_id"] for line in self.stack.lines(self.states[batch_id]["error_file_id"])
        }
        self.look(retried["id"])
        return str(retried["id"])

    @precondition(lambda self: self.states and self.kills < 2)
    @rule(name=st.sampled_from(["worker", "housekeeper", "web", "beat"]))
    def kill(self, name: str) -> None:
        self.kills += 1
        process.kill(self.stack.processes(name))
        if name == "web":
            self._wait(lambda: self._answers(), 60)

    @precondition(lambda self: self.states)
    @rule(seconds=st.sampled_from([0.3, 1.0]))
    def let_time_pass(self, seconds: float) -> None:
        time.sleep(seconds)
        for batch_id in self.states:
            self.look(batch_id)

    def look(self, batch_id: str) -> None:
        """Compare the batch with its last state: nothing reported before may be revoked."""
        batch = self.client.batches.retrieve(batch_id).to_dict()
        before: dict[str, Any] = self.states.get(batch_id, batch)
        assert batch["status"] in reachable(before["status"])
        for count in ("total", "completed", "failed"):
            assert batch["request_counts"][count] >= before["request_counts"][count]  # type: ignore[index]
        for name in TIMES:
            assert before[name] in (None, batch[name]), f"{name} was changed"
        assert batch[f"{batch['status']}_at" if batch["status"] != "validating" else "created_at"] is not None
        times = [batch[name] for name in ("created_at", *TIMES) if batch[name] is not None and name != "expires_at"]
        assert min(times) == batch["created_at"]
        if before["status"] in TERMINAL:
            assert {**batch, "batchyard": None} == {**before, "batchyard": None}
        self.states[batch_id] = batch

    def teardown(self) -> None:
        """Every batch ends, and every request has exactly one line. A kill may leave no time to validate.

        A slow machine may leave none either.
        """
        for batch_id in list(self.states):
            self._wait(lambda: self._ended(batch_id), 120)  # noqa: B023
            batch = self.states[batch_id]
            lines = self.stack.lines(batch["output_file_id"]) + self.stack.lines(batch["error_file_id"])
            if batch["status"] == "failed":
                (error,) = batch["errors"]["data"]
                assert error["code"] == "validation_failed" and "in time" in error["message"]
                assert batch["completion_window"] == "3s" and not lines
                continue
            assert Counter(line["custom_id"] for line in lines) == Counter(self.requests[batch_id])
            counts, ours = batch["request_counts"], batch["batchyard"]
            assert counts["total"] == counts["completed"] + counts["failed"] + ours["expired"] + ours["cancelled"]
            times = [batch[name] for name in ("created_at", "in_progress_at", "finalizing_at", f"{batch['status']}_at")]
            assert [at for at in times if at] == sorted(at for at in times if at)
        self.http.close()

    def _ended(self, batch_id: str) -> bool:
        self.look(batch_id)
        return self.states[batch_id]["status"] in TERMINAL

    def _answers(self) -> bool:
        try:
            return self.http.get("/v1/models").status_code == 200  # which the gateway does not answer itself
        except httpx.TransportError:
            return False

    def _wait(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + PATIENCE * seconds
        while not condition():
            assert time.monotonic() < deadline, f"not within {seconds} s; {self.states}"
            time.sleep(0.05)


def test_nothing_a_client_was_told_is_taken_back_and_no_line_is_lost(faulty: RunningStack) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        lambda: Lifecycle(faulty),
        settings=settings(
            max_examples=3,
            stateful_step_count=14,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
