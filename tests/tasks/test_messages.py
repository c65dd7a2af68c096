"""Messages to workers: one wakes a job, and none that is lost fails its sender."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import redis
from celery import Signature
from kombu.exceptions import OperationalError

from jobs import messages as job_messages
from tasks import messages


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[Any, ...], float | None]]:
    """Name, arguments and countdown of each message that was sent."""
    calls: list[tuple[str, tuple[Any, ...], float | None]] = []

    def apply(message: Signature, *, retry: bool, countdown: float | None) -> None:
        assert not retry, "a request waits for no broker"
        calls.append((message.task, tuple(message.args), countdown))

    monkeypatch.setattr(Signature, "apply_async", apply)
    return calls


class Keys:
    """The keys of a Redis, without their times."""

    def __init__(self) -> None:
        self.keys: set[str] = set()

    def set(self, key: str, value: object, *, nx: bool, ex: int) -> bool | None:
        if nx and key in self.keys:
            return None
        self.keys.add(key)
        return ex > 0

    def delete(self, key: str) -> None:
        self.keys.discard(key)


def test_flower_shows_the_id_and_the_name_of_what_a_message_is_about(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str | None] = []
    monkeypatch.setattr(Signature, "apply_async", lambda message, **_: shown.append(message.options.get("argsrepr")))
    messages.validate("batch_1", "the nightly\nrun")
    messages.segment(7, 2, "batch_1", 0, "the nightly run")
    job_messages.validate("job_1", "a debate")
    job_messages.validate("job_2")
    assert shown == [
        "(batch_1, 'the nightly\\nrun')",
        "(batch_1, 'the nightly run', segment 1, epoch 2)",
        "(job_1, 'a debate')",
        None,
    ]


def test_a_job_is_woken_once_until_its_message_has_come(sent: list[Any]) -> None:
    client: Any = Keys()
    for _ in range(3):
        job_messages.wake(client, "job_1")
    job_messages.wake(client, "job_2", 5.0)
    assert sent == [("job.advance", ("job_1",), None), ("job.advance", ("job_2",), 5.0)]
    job_messages.woken(client, "job_1")
    job_messages.wake(client, "job_1")
    assert len(sent) == 3


def test_only_a_child_wakes_a_parent(sent: list[Any]) -> None:
    client: Any = Keys()
    job_messages.wake_parent(client, None)
    assert sent == []
    job_messages.wake_parent(client, "job_1")
    assert [arguments for _, arguments, _ in sent] == [("job_1",)]


def test_nobody_fails_when_redis_or_the_broker_is_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away = mock.Mock(spec=redis.Redis)
    away.set.side_effect = away.delete.side_effect = redis.ConnectionError("refused")
    job_messages.wake(away, "job_1")
    job_messages.woken(away, "job_1")
    monkeypatch.setattr(Signature, "apply_async", mock.Mock(side_effect=OperationalError("refused")))
    messages.validate("batch_1")
    logged = [record.getMessage() for record in caplog.records if record.name in ("jobs.messages", "tasks.messages")]
    assert [message.partition(",")[0].partition(":")[0] for message in logged] == [
        "job not woken",
        "job not noted as woken",
        "broker is away",
    ]


def test_a_batch_without_steps_is_finished_by_one_message(sent: list[Any]) -> None:
    messages.finish("batch_1", [])
    assert sent == [("batch.finish", ("batch_1", True), None)]
