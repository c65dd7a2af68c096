"""Jobs through the API that are validated and finished as they are, and whose items end as a test says."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from flask.testing import FlaskClient

from jobs import app, finish, validation
from store.formats import items, job_chunks
from store.jobs import chunk_records, lifecycle
from store.records import Job
from tasks.context import AppContext
from tests.support.webapps import upload


class EndedJobs:
    """Jobs that are validated and finished as they are, and whose items end as a test says."""

    def __init__(self, context: AppContext, client: FlaskClient) -> None:
        self.context = context
        self.client = client

    def create(
        self, rows: Sequence[Mapping[str, Any]] | bytes, file: str = "in.jsonl", **changes: Any
    ) -> dict[str, Any]:
        """A job that has begun."""
        content = rows if isinstance(rows, bytes) else b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        file_id = upload(self.client, content, name=file, purpose="user_data").get_json()["id"]
        body = {"recipe": "debate", "options": {"model": "echo"}, "input_file_id": file_id} | changes
        return self.begun(self.client.post("/v1/jobs", json=body).get_json())

    def begun(self, job: dict[str, Any]) -> dict[str, Any]:
        assert job.get("status") == "validating", job
        assert validation.run(self.context, job["id"], "here/1/task")
        return self.look(job)

    def end(
        self,
        job: dict[str, Any],
        states: Mapping[int, str],
        outcome: str = "completed",
        texts: Mapping[int, str] | None = None,
    ) -> dict[str, Any]:
        """End the job, and before it the items with these numbers, some with a text as result."""
        with self.context.database.read() as session:
            record = session.get_one(Job, job["id"])
        rows = [
            {
                **{"position": row.position, "number": row.number, "custom_id": row.custom_id, "life": 1, "turns": 1},
                **{"state": states[row.number], "result": json.dumps({"text": (texts or {}).get(row.number)})},
                **{"error": None if states[row.number] == "completed" else '{"code": "no_answer", "message": "None."}'},
                **{"started_at": time.time(), "ended_at": time.time()},
            }
            for row in items.Reader(self.context.artifacts, record.items_sha256 or "").read(0, 100)
            if row.number in states
        ]
        sha256 = job_chunks.write(self.context.artifacts, pa.Table.from_pylist(rows, job_chunks.RESULT))
        with self.context.database.write() as session:
            chunk_records.add(session, job["id"], "result", sha256, len(rows))
            counts = Counter(row["state"] for row in rows)
            values = {state: counts[state] for state in ("completed", "failed", "stuck")}
            after = "cancelling" if outcome == "cancelled" else "finalizing"
            lifecycle.transition(session, job["id"], "in_progress", after, outcome=outcome, **values)
        assert finish.run(self.context, job["id"], "here/1/task")
        return self.look(job)

    def artifacts(self, job: dict[str, Any]) -> dict[str, bytes]:
        """Return the contents of the artifacts of an ended job by name."""
        files = {artifact["name"]: artifact["file_id"] for artifact in job["batchyard"]["artifacts"]}
        return {name: self.client.get(f"/v1/files/{file_id}/content").data for name, file_id in files.items()}

    def look(self, job: dict[str, Any]) -> dict[str, Any]:
        return dict(self.client.get(f"/v1/jobs/{job['id']}").get_json())


class EndedComposites(EndedJobs):
    """Jobs of a recipe that makes jobs, whose ticks a test makes, and whose children end as it says."""

    def post(self, **options: Any) -> Any:
        """Send the job with these options over those of the test, and return the response."""
        raise NotImplementedError

    def started(self, **options: Any) -> dict[str, Any]:
        """A job whose first children have started."""
        answer = self.post(**options)
        assert answer.status_code == 200, answer.text
        return self.tick(self.begun(answer.get_json()))

    def refused(self, **options: Any) -> tuple[str, str]:
        """Return param and message with which the job is refused."""
        answer = self.post(**options)
        assert answer.status_code == 400, answer.text
        error = answer.get_json()["error"]
        return error["param"], error["message"]

    def tick(self, job: dict[str, Any]) -> dict[str, Any]:
        app.advance_leased(self.context, job["id"], "here/1/task")
        return self.look(job)

    def children(self, job: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the jobs that a job has started, by key, oldest first."""
        page = self.client.get(f"/v1/jobs?parent_id={job['id']}&limit=100").get_json()["data"]
        return {child["batchyard"]["child_key"]: child for child in reversed(page)}
