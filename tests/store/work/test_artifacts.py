"""An artifact is replaced while its work goes on, and final afterwards."""

from __future__ import annotations

from sqlalchemy import update

from store import files
from store.database import Database
from store.jobs import lifecycle
from store.records import Job
from tests.support.jobs import create_job, start_job


def test_an_artifact_is_replaced_while_the_job_runs_and_gets_a_new_file_afterwards(
    database: Database, project: str
) -> None:
    with database.write() as session:
        job = start_job(session, project, output_expires_after=3600)
        first = lifecycle.add_artifact(session, job, "results.jsonl", "1" * 64, 10, 1)
        second = lifecycle.add_artifact(session, job, "results.jsonl", "2" * 64, 20, 2)
        assert (second.id, second.sha256, second.bytes) == (first.id, "2" * 64, 20)
        assert (first.filename, first.expires_at) == (f"{job.id}_results.jsonl", first.created_at + 3600)
        lifecycle.transition(session, job.id, "in_progress", "finalizing", outcome="completed")
        lifecycle.transition(session, job.id, "finalizing", "completed")
        session.refresh(job)
        amended = lifecycle.add_artifact(session, job, "results.jsonl", "3" * 64, 30, 3)
    assert amended.id != first.id
    with database.read() as session:
        ((artifact, file),) = lifecycle.artifacts(session, [job.id])[job.id]
    assert (artifact.name, artifact.lines, file.id, file.sha256) == ("results.jsonl", 3, amended.id, "3" * 64)


def test_artifacts_are_listed_by_name_of_each_owner(database: Database, project: str) -> None:
    with database.write() as session:
        first, second = create_job(session, project), create_job(session, project)
        for name in ("view.json", "manifest.json"):
            lifecycle.add_artifact(session, first, name, "a" * 64, 1, None)
    with database.read() as session:
        listed = lifecycle.artifacts(session, [first.id, second.id])
    assert [artifact.name for artifact, _ in listed[first.id]] == ["manifest.json", "view.json"]
    assert listed[second.id] == []


def test_an_artifact_is_found_once_its_work_has_ended_and_in_its_project_alone(
    database: Database, project: str
) -> None:
    with database.write() as session:
        job = start_job(session, project)
        file = lifecycle.add_artifact(session, job, "view.json", "a" * 64, 1, None)
        assert lifecycle.find_artifact(session, project, job.id, "view.json") is None
        session.execute(update(Job).values(status="completed"))
        assert lifecycle.find_artifact(session, project, job.id, "view.json") == file
        assert lifecycle.find_artifact(session, "proj_other", job.id, "view.json") is None
        assert lifecycle.find_artifact(session, project, job.id, "other.json") is None
        files.delete(session, project, file.id)
        session.flush()
        assert lifecycle.find_artifact(session, project, job.id, "view.json") is None
