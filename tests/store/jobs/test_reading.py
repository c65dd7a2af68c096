"""What is shown of a job counts the jobs that it has started, too."""

from __future__ import annotations

from sqlalchemy import update

from store.database import Database
from store.jobs import reading, stages
from store.jobs.reading import NO_TOKENS, Tokens
from store.records import Batch, Segment
from tests.support.jobs import create_job, open_stage, planned, start_job
from tests.support.webapps import on_sqlite

pytestmark = on_sqlite


def test_tokens_of_children_count_for_their_job_and_for_themselves(database: Database, project: str) -> None:
    with database.write() as session:
        parent = start_job(session, project)
        child, other = start_job(session, project, parent_id=parent.id), start_job(session, project)
        for job, tokens in ((parent, 1), (child, 10)):
            batch = open_stage(session, job)
            values = {"input_tokens": tokens, "cached_tokens": 0, "output_tokens": 2 * tokens}
            session.execute(update(Batch).where(Batch.id == batch.id).values(**values))
        ids = [parent.id, child.id, other.id]
        assert reading.usage(session, ids) == dict(
            zip(ids, [Tokens(11, 0, 22, 0), Tokens(10, 0, 20, 0), NO_TOKENS], strict=True)
        )
        assert reading.children(session, ids) == {parent.id: [child.id], child.id: [], other.id: []}


def test_deaths_of_engines_are_summed_over_the_stages(database: Database, project: str) -> None:
    with database.write() as session:
        job = start_job(session, project)
        for number, deaths in enumerate(({"mini": 1, "big": 2}, {"mini": 3}, None)):
            batch = open_stage(session, job, number, f"stage-{number}")
            batch.engine_deaths = deaths and {model: {"deaths": count} for model, count in deaths.items()}
        session.flush()
        assert reading.engine_deaths(session, job.id) == {"big": 2, "mini": 4}


def test_the_newest_job_of_a_configuration_is_named_in_its_project(database: Database, project: str) -> None:
    with database.write() as session:
        create_job(session, project)
        newest = create_job(session, project)
        assert reading.same(session, project, "c" * 64) == newest.id
        assert reading.same(session, "proj_other", "c" * 64) is None


def test_segments_are_listed_stage_by_stage_and_those_that_are_done_can_be_left_out(
    database: Database, project: str
) -> None:
    with database.write() as session:
        job = start_job(session, project)
        for number, name in ((0, "argue"), (1, "judge")):
            batch = open_stage(session, job, number, name)
            stages.extend(session, batch.id, [planned(plan="1"), planned(plan="2", row_group=3)])
        groups = reading.plan_groups(session, job.id)
        assert [(group.stage, group.plan_sha256[0], group.row_group) for group in groups] == [
            ("argue", "1", 0),
            ("argue", "2", 3),
            ("judge", "1", 0),
            ("judge", "2", 3),
        ]
        session.execute(update(Segment).where(Segment.id == groups[0].segment_id).values(state="done"))
        assert reading.plan_groups(session, job.id, unfinished=True) == groups[1:]
        (listed,) = reading.stage_batches(session, [job.id]).values()
        assert [stage.name for stage, batch in listed if batch is not None] == ["argue", "judge"]
