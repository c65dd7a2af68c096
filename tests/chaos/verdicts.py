"""Verdicts on the items of a job while its stack is killed: what a CI would do."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator

import requests

PAUSE_SECONDS = 0.2


class House:
    """Gives each item its verdicts. What met an error is tried again; a verdict that there is already is a 409."""

    def __init__(self, url: str, key: str, passes: Callable[[int, int], bool]) -> None:
        """
        Args:
            url: the API's, without the version.
            passes: the nth verdict of an item, from 0.
        """
        self._url = url
        self._passes = passes
        self._http = requests.Session()
        self._http.headers["Authorization"] = f"Bearer {key}"
        self._turns: dict[tuple[str, int], list[int]] = defaultdict(list)
        self._judged: set[tuple[str, int, int]] = set()
        self.refused: list[str] = []
        """Answers that no verdict should have got."""

    @contextlib.contextmanager
    def judging(self, job_id: str) -> Iterator[None]:
        """Judge what waits for a verdict until the end of this block."""
        end = threading.Event()

        def run() -> None:
            while not end.wait(PAUSE_SECONDS):
                with contextlib.suppress(requests.RequestException):
                    self._judge(job_id)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()

    def _judge(self, job_id: str) -> None:
        path = f"{self._url}/v1/jobs/{job_id}/items"
        waiting = self._http.get(path, params={"state": "waiting_for_verdict", "limit": "100"}, timeout=10)
        waiting.raise_for_status()
        for item in waiting.json()["data"]:
            number, turn = int(item["number"]), int(item["turn"])
            turns = self._turns[job_id, number]
            if turn not in turns:
                turns.append(turn)
            if (job_id, number, turn) in self._judged:
                continue
            verdict = {"gate": "house", "turn": turn, "passed": self._passes(number - 1, turns.index(turn))}
            answer = self._http.post(f"{path}/{number}", json={"verdict": verdict}, timeout=10)
            if answer.status_code in (200, 409):
                self._judged.add((job_id, number, turn))
            elif answer.status_code < 500:
                self.refused.append(f"item {number}: {answer.status_code} {answer.text[:300]}")
            else:
                answer.raise_for_status()
