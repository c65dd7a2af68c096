"""Fill a store as years of use would: thousands of ended batches, and a large one with its files.

python -m tests.support.filling DATA      # into the data folder of a stopped stack
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import insert, select

from batchyard import settings
from store import batches, files, keys
from store.accounting.months import Month
from store.formats import rows
from store.formats.results import ERRORS, OUTPUT
from store.records import Batch, DailyUsage, File, Project, Segment, new_id, now
from tasks.context import AppContext, build
from tests.support.batches import create_batch
from tests.support.rows_of_files import of_files

LINES, FAILED_EVERY = 50_000, 10
METADATA = {"team": "search"}
ENDS = ("completed", "completed", "completed", "failed", "expired", "cancelled")


def fill(context: AppContext, number: int) -> str:
    """Create `number` ended batches in the project `default`, 20 running ones and a large one. Return its id."""
    with context.database.write() as session:
        keys.create(session, "default", admin=True)
        project_id = session.scalars(select(Project.id).where(Project.name == "default")).one()
        source = _file(context, session, project_id, "in.jsonl", b"{}")
        template = create_batch(session, source, request_metadata=METADATA)
        base = {column.key: getattr(template, column.key) for column in Batch.__mapper__.column_attrs}
        ended = [
            base
            | {"id": new_id("batch_"), "status": end, f"{end}_at": now(), "total": 100, "completed": 97, "failed": 3}
            for end in (ENDS[index % len(ENDS)] for index in range(number))
        ]
        session.execute(insert(Batch), ended)
        session.execute(insert(DailyUsage), [_usage(number, row) for number, row in enumerate(ended)])
        for _ in range(20):
            running = create_batch(session, source, request_metadata=METADATA)
            planned = [Segment(model="echo", requests=1000, bytes=100_000) for _ in range(5)]
            batches.plan(session, running, plan_sha256="1" * 64, segments=planned, models=_models(), simulated=True)
        return _large(context, session, project_id)


def _usage(number: int, batch: dict[str, Any]) -> dict[str, Any]:
    """What a batch has used, in this month, with one of five models and ten keys."""
    month = Month.of()
    amounts = dict.fromkeys(("failed", "shared_requests", "cached_tokens", "bytes", "milliseconds"), 3)
    prices = {"currency": "EUR", "input_price": 150_000, "cached_price": 75_000, "output_price": 600_000}
    return {
        "batch_id": batch["id"],
        "model": f"model-{number % 5}",
        "day": month.first + number % (month.end - month.first),
        "project_id": batch["project_id"],
        "job_id": None,
        "key_id": f"key-{number % 10}",
        **amounts,
        **{"requests": 100, "input_tokens": 50_000, "output_tokens": 9_000, **prices, "hour_price": 0},
    }


def _models() -> dict[str, dict[str, Any]]:
    return {"echo": {"name": "echo", "engine": "echo"}}


def _file(context: AppContext, session: Any, project_id: str, name: str, content: bytes) -> File:
    return files.create(
        session,
        project_id,
        filename=name,
        purpose="batch",
        size=len(content),
        sha256=context.artifacts.put(content),
        expires_after=None,
    )


def _large(context: AppContext, session: Any, project_id: str) -> str:
    prompt = "Summarise this ticket in one sentence and name the product it is about. " * 8
    lines: dict[str, list[str]] = {"source": [], OUTPUT: [], ERRORS: []}
    for number in range(LINES):
        body = {"model": "echo", "messages": [{"role": "user", "content": f"{number}: {prompt}"}]}
        request = {"custom_id": f"ticket-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        failed = number % FAILED_EVERY == 0
        error = {"code": f"code_{number // FAILED_EVERY % 7}", "message": "The request was too long for the model."}
        choice = {"message": {"role": "assistant", "content": f"{number}: {prompt}"}}
        answer = {
            "id": f"batch_req_{number}",
            "custom_id": f"ticket-{number}",
            "response": {"status_code": 400, "body": {"error": error}}
            if failed
            else {"status_code": 200, "body": {"choices": [choice]}},
            "error": None,
        }
        lines["source"].append(json.dumps(request))
        lines[ERRORS if failed else OUTPUT].append(json.dumps(answer))
    contents = {name: "\n".join([*texts, ""]).encode() for name, texts in lines.items()}
    source = _file(context, session, project_id, "large.jsonl", contents["source"])
    batch = create_batch(session, source, request_metadata=METADATA)
    segments = [Segment(model="echo", requests=LINES)]
    batches.plan(session, batch, plan_sha256="1" * 64, segments=segments, models=_models(), simulated=True)
    artifacts = {
        name: batches.add_artifact(session, batch, name, context.artifacts.put(contents[name]), len(contents[name]), 1)
        for name in (OUTPUT, ERRORS)
    }
    batches.transition(session, batch.id, "in_progress", "finalizing", outcome="completed")
    batches.transition(
        session,
        batch.id,
        "finalizing",
        "completed",
        completed=LINES - LINES // FAILED_EVERY,
        failed=LINES // FAILED_EVERY,
        output_file_id=artifacts[OUTPUT].id,
        error_file_id=artifacts[ERRORS].id,
        rows_sha256=_rows(context, contents),
        timeline=[[batch.created_at + 10.5 * point, 410 * point, 61_000 * point, 0] for point in range(121)],
    )
    return batch.id


def _rows(context: AppContext, contents: dict[str, bytes]) -> str:
    table = of_files(*(io.BytesIO(contents[name]) for name in ("source", OUTPUT, ERRORS)))
    with context.artifacts.create() as file:
        rows.write(file, table)
    return file.sha256


if __name__ == "__main__":
    context = build(settings.load(data=Path(sys.argv[1]), allow_simulated=True))
    context.database.upgrade()
    print(fill(context, 10_000))
