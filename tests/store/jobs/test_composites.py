"""A composite finds the jobs that it has started, and completed ones of the same configuration."""

from __future__ import annotations

from sqlalchemy import update

from store import files
from store.database import Database
from store.jobs import composites, lifecycle
from store.records import Job
from tests.support.jobs import create_job, start_job
from tests.support.webapps import on_sqlite

pytestmark = on_sqlite


def test_children_are_found_by_their_keys(database: Database, project: str) -> None:
    with database.write() as session:
        parent = create_job(session, project)
        ids = {key: create_job(session, project, parent_id=parent.id, child_key=key).id for key in ("b", "a")}
        create_job(session, project)
        children = composites.children(session, parent.id)
    assert {key: child.id for key, child in children.items()} == ids
    assert list(children) == ["b", "a"], "oldest first"


def test_a_completed_job_of_the_same_configuration_is_reused_while_its_manifest_is_there(
    database: Database, project: str
) -> None:
    with database.write() as session:
        jobs = [start_job(session, project) for _ in range(3)]
        manifests = [lifecycle.add_artifact(session, job, composites.MANIFEST, "a" * 64, 1, None) for job in jobs]
        assert composites.completed(session, project, "c" * 64) is None
        session.execute(update(Job).where(Job.id != jobs[2].id).values(status="completed"))

        def found() -> str | None:
            job = composites.completed(session, project, "c" * 64)
            return job and job.id

        assert found() == jobs[1].id
        files.delete(session, project, manifests[1].id)
        session.flush()
        assert found() == jobs[0].id
        assert composites.completed(session, "proj_other", "c" * 64) is None
        assert composites.completed(session, project, "d" * 64) is None


def test_derived_models_are_those_of_children_that_have_not_ended(database: Database, project: str) -> None:
    models = {"mini": {"name": "mini"}, "a~b": {"name": "a~b"}, "mini~0123abcd": {"name": "mini~0123abcd"}}
    with database.write() as session:
        parent = create_job(session, project)
        child = create_job(session, project, parent_id=parent.id, models=models)
        assert composites.derived_models(session) == {"mini~0123abcd": {"name": "mini~0123abcd"}}
        session.execute(update(Job).where(Job.id == child.id).values(status="completed"))
        assert composites.derived_models(session) == {}
