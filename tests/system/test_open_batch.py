"""Open batches through deaths: what two clients add while the web process is killed runs once."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path

import httpx

from batchyard.local import process
from tests.support.rows import until
from tests.support.stacks import RunningStack, a_chat

APPENDS = 25
EACH = 4


def add_all(stack: RunningStack, batch_id: str, client: int, added: list[int]) -> None:
    """Add APPENDS times EACH requests, each append again with its key until it is answered."""
    with httpx.Client(base_url=stack.url, headers={"Authorization": f"Bearer {stack.key}"}, timeout=60) as http:
        for number in range(APPENDS):
            names = [f"added-{client}-{number}-{place}" for place in range(EACH)]
            body = "".join(json.dumps(a_chat(name, name)) + "\n" for name in names)
            headers = {"Idempotency-Key": f"{client}-{number}"}
            deadline = time.monotonic() + 180
            while True:
                assert time.monotonic() < deadline, f"append {number} of client {client} is not answered"
                try:
                    answer = http.post(f"/v1/batches/{batch_id}/requests", content=body, headers=headers)
                except httpx.TransportError:
                    time.sleep(0.1)  # its process was killed; the supervisor starts another
                    continue
                if answer.status_code not in (502, 503):  # the gateway lives on, and says that the web app ended
                    break
            assert answer.status_code == 200, answer.text
            added.append(answer.json()["first_line"])


def test_two_clients_lose_and_repeat_nothing_while_the_web_process_is_killed(
    faulty: RunningStack, faulty_calls: Path
) -> None:
    http = httpx.Client(base_url=faulty.url, headers={"Authorization": f"Bearer {faulty.key}"}, timeout=60)
    how = {"open": True, "endpoint": "/v1/chat/completions", "completion_window": "1h"}
    batch_id = http.post("/v1/batches", json=how).json()["id"]
    added: list[int] = []
    clients = [threading.Thread(target=add_all, args=(faulty, batch_id, client, added)) for client in range(2)]
    for client in clients:
        client.start()
    for kills in (1, 2):
        until(lambda: len(added) >= kills * APPENDS // 2)  # noqa: B023
        process.kill(faulty.processes("web"))
    for client in clients:
        client.join()
    assert sorted(added) == list(range(1, 2 * APPENDS * EACH, EACH))

    def closed() -> bool:
        try:
            return http.post(f"/v1/batches/{batch_id}/close").status_code == 200
        except httpx.TransportError:
            return False

    until(closed)
    until(lambda: http.get(f"/v1/batches/{batch_id}").json()["status"] == "completed")
    ended = faulty.client.batches.retrieve(batch_id)
    wanted = {
        f"added-{client}-{number}-{place}" for client in range(2) for number in range(APPENDS) for place in range(EACH)
    }
    answered = Counter(line["custom_id"] for line in faulty.lines(ended.output_file_id))
    assert answered == Counter(wanted)
    computed = [call for call in faulty_calls.read_text().splitlines() if call in wanted]
    assert len(computed) == len(wanted), "each was computed once"
