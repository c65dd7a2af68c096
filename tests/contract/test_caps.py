"""A key's cap holds over gateways and batches: what it is exceeded by was in flight."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from sqlalchemy import select

from batchyard.local import ports, services
from store.database import Database
from store.records import Event
from tests.support.rows import until
from tests.support.stacks import RunningStack, a_chat

CAP, LIVE, WORDS = 1_000, 64, 5
ROWS = 300
"""Of a batch: no cap lets it have all of them, if it were alone."""
IN_FLIGHT = 4
"""The requests that a segment keeps in the engine of model `raced`: it answers them in a quarter of a second."""


@pytest.fixture
def second(stack: RunningStack) -> Iterator[str]:
    """Run another gateway of the stack, and return its address."""
    port, web = ports.Port("127.0.0.1", 0), stack.processes("web")[0]
    port.share()
    process = subprocess.Popen(services.gateway("127.0.0.1", port.number, stack.url), env=web.environ(), cwd=stack.data)
    url = f"http://127.0.0.1:{port.number}"

    def answers() -> bool:
        try:
            return httpx.get(f"{url}/healthz").status_code == 200
        except httpx.TransportError:
            return False

    until(answers)
    yield url
    process.terminate()
    process.wait(60)
    port.close()


def test_a_cap_raced_by_live_requests_of_two_gateways_and_three_batches_is_exceeded_by_what_was_in_flight(
    stack: RunningStack, second: str
) -> None:
    made: Any = stack.client.post(
        "/keys", body={"project": "raced", "max_tokens": CAP, "label": "racer"}, cast_to=object
    )
    assert (made["cap"]["max_tokens"], made["cap"]["tokens"], made["cap"]["state"]) == (CAP, 0, "ok")
    racer = replace(stack, key=made["key"])
    text = "word " * WORDS
    batches = [
        racer.submit([a_chat(f"b{batch}-{number}", f"{text}{batch} {number}", model="raced") for number in range(ROWS)])
        for batch in range(3)
    ]

    refused_at: list[float] = []
    clients = [openai.OpenAI(base_url=f"{url}/v1", api_key=racer.key, max_retries=0) for url in (stack.url, second)]

    def race(number: int) -> tuple[int, openai.PermissionDeniedError]:
        """Send one live request after the other until one is refused; return the tokens of all."""
        client, tokens = clients[number % 2], 0
        for _ in range(10_000):
            try:
                answer = client.chat.completions.create(
                    model="raced", messages=[{"role": "user", "content": f"{text}{number}"}]
                )
            except openai.PermissionDeniedError as error:
                refused_at.append(time.monotonic())
                return tokens, error
            assert answer.usage is not None
            tokens += answer.usage.total_tokens
        raise AssertionError("it was never refused")

    until(lambda: any(racer.client.batches.retrieve(batch.id).request_counts.completed for batch in batches))
    with ThreadPoolExecutor(LIVE) as pool:
        ended = list(pool.map(race, range(LIVE)))
    assert "Key 'racer' has used" in ended[0][1].message and ended[0][1].code == "budget_exceeded"

    def paused() -> bool:
        return all(
            racer.client.batches.retrieve(batch.id).batchyard["paused_by"] == "its key's cap" for batch in batches
        )

    def at_rest() -> bool:
        found = [racer.client.get(f"/batches/{batch.id}/segments", cast_to=httpx.Response) for batch in batches]
        return all(segment["state"] == "pending" for page in found for segment in page.json()["data"])

    until(paused)
    until(at_rest)
    # A segment learns of its pause within a second (segment.BEAT_SECONDS), and appends its answers once a second. One
    # second more for a machine that is busy, or as many as it has taken.
    seconds = max(3.0, 1 + time.monotonic() - min(refused_at))
    answered = [racer.client.batches.retrieve(batch.id).request_counts.completed for batch in batches]
    of_live, of_batches = 2 * (WORDS + 1), 2 * (WORDS + 2)
    used = sum(tokens for tokens, _ in ended) + of_batches * sum(answered)
    until(lambda: cap_of(stack, made["id"])["tokens"] == used)  # live usage is written
    # Four answers a quarter of a second until then, and those in the engine.
    in_flight = LIVE * of_live + 3 * (seconds * 4 * IN_FLIGHT + IN_FLIGHT) * of_batches
    print(f"over by {used - CAP} of {CAP} after {seconds:.1f} s; in flight at most {in_flight}")
    assert 0 <= used - CAP <= in_flight
    with pytest.raises(openai.PermissionDeniedError, match="New batches and jobs are accepted again from"):
        racer.submit([a_chat("one", "more")])
    with pytest.raises(openai.PermissionDeniedError, match="raises its cap"):
        racer.client.post(f"/batches/{batches[0].id}/resume", cast_to=object)
    assert announced(stack, made["id"]) == ["budget.warning", "budget.exceeded"]
    stack.client.post(f"/keys/{made['id']}", body={"max_tokens": None}, cast_to=object)
    assert all(count < ROWS for count in answered)
    until(lambda: not any(racer.client.batches.retrieve(batch.id).batchyard["paused_by"] for batch in batches))
    until(lambda: racer.client.batches.retrieve(batches[0].id).request_counts.completed > answered[0])
    for batch in batches:
        racer.client.batches.cancel(batch.id)


def cap_of(stack: RunningStack, key: str) -> dict[str, Any]:
    keys: Any = stack.client.get("/keys", cast_to=object)
    return next(dict(one["cap"]) for one in keys["data"] if one["id"] == key)


def announced(stack: RunningStack, key: str) -> list[str]:
    """Return the events of budgets that are about a key."""
    database = Database(stack.database_url)
    try:
        with database.read() as session:
            found = session.scalars(select(Event).where(Event.key_id.is_(None)).order_by(Event.id)).all()
    finally:
        database.close()
    return [event.type for event in found if event.type.startswith("budget.") and event.data.get("key_id") == key]
