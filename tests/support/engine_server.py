"""An API client whose server is engines in this process: each batch is answered when it is created."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from batchyard.endpoints import forms, output_lines, responses
from batchyard.endpoints.catalog import ENDPOINTS
from inference.engine import Engine
from tasks.execution import engine_status
from tests.support.rows import all_answers


class EngineServer:
    """What `batchyard.client` calls of ApiClient. `made`: the batches, the newest last."""

    url = "http://engines"

    def __init__(self, *engines: Engine) -> None:
        self._engines = {engine.spec.name: engine for engine in engines}
        for engine in engines:
            asyncio.run(engine.start())
        self._files: dict[str, bytes] = {}
        self.made: list[dict[str, Any]] = []

    def models(self) -> list[dict[str, Any]]:
        return [
            {
                "id": name,
                "batchyard": {
                    "engine": engine.name,
                    "simulated": engine.simulated,
                    "endpoints": [*engine.spec.endpoints],
                    "answer_forms": engine_status.answer_forms(engine.spec),
                    "logprobs": engine_status.tells_logprobs(engine.spec),
                },
            }
            for name, engine in self._engines.items()
        ]

    def batches(self) -> Iterator[dict[str, Any]]:
        return reversed(self.made)

    def upload(self, file: Path) -> str:
        file_id = f"file-{len(self._files)}"
        self._files[file_id] = file.read_bytes()
        return file_id

    def create(self, file_id: str, *, endpoint: str, metadata: dict[str, str], **_: Any) -> dict[str, Any]:
        requests = [json.loads(line) for line in self._files[file_id].splitlines()]
        engine = self._engines[requests[0]["body"]["model"]]
        bodies = [request["body"] for request in requests]
        for body in bodies:
            assert engine.unsupported(engine.spec, endpoint, body) is None
        answers = asyncio.run(all_answers(engine, endpoint, bodies))
        self._files[f"{file_id}-out"] = "\n".join(
            output_lines.line(request["custom_id"], answer.status_code, orjson.dumps(answer.body), answer.error)
            for request, answer in zip(requests, answers, strict=True)
        ).encode()
        checks = forms.Checks(60)
        flaws = {
            "cut_off": sum("cut_off" in responses.flaws(answer.body) for answer in answers),
            "empty": sum("empty" in responses.flaws(answer.body) for answer in answers),
            "invalid": sum(
                map(checks.is_invalid, map(json.dumps, bodies), self._files[f"{file_id}-out"].decode().split("\n"))
            ),
        }
        if not ENDPOINTS[endpoint].generates:
            flaws = dict.fromkeys(flaws, 0)
        batch = {
            "id": f"batch_{len(self.made)}",
            "object": "batch",
            "status": "completed",
            "metadata": metadata,
            "output_file_id": f"{file_id}-out",
            "error_file_id": None,
            "request_counts": {"total": len(requests), "completed": len(requests), "failed": 0},
            "batchyard": {"retry_of": None, "eta_seconds": None, **flaws},
        }
        self.made.append(batch)
        return batch

    def lines(self, file_id: str) -> list[bytes]:
        return self._files[file_id].splitlines()
