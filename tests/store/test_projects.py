"""Projects are made by their names, once, and have limits of their own."""

from __future__ import annotations

import pytest

from batchyard.errors import NotFoundError, RequestError
from store import projects
from store.database import Database
from tests.support.webapps import on_sqlite

pytestmark = on_sqlite


def test_a_name_makes_one_project(database: Database) -> None:
    with database.write() as session:
        first = projects.get_or_create(session, "one")
        assert projects.get_or_create(session, "one") == first
        assert projects.named(session, "one") == projects.named(session, "one", only=first.id) == first.id
        assert projects.names(session, [first.id, "proj_none"]) == {first.id: "one"}


@pytest.mark.parametrize("name", ["", "x" * 129, "a\nb", "a\0", "\ud800"])
def test_what_is_no_name_is_refused(database: Database, name: str) -> None:
    with pytest.raises(RequestError, match="1 to 128 characters") as refused, database.write() as session:
        projects.get_or_create(session, name)
    assert refused.value.param == "project"


def test_a_project_that_is_another_ones_is_as_unknown_as_none(database: Database, project: str) -> None:
    with database.write() as session:
        projects.get_or_create(session, "other")
        for name, only in (("none", None), ("other", project)):
            with pytest.raises(NotFoundError, match=f"There is no project '{name}'"):
                projects.named(session, name, only=only)
        with pytest.raises(NotFoundError):
            projects.update(session, "proj_none", tier=None)


def test_limits_are_set_one_by_one_and_removed(database: Database, project: str) -> None:
    with database.write() as session:
        projects.update(session, project, max_segments=3, tier="gold")
        assert projects.max_segments(session) == {project: 3}
        projects.update(session, project, max_segments=None)
        assert projects.max_segments(session) == {}
        assert projects.get(session, project).tier == "gold"


def test_a_tier_is_one_of_the_deployments(database: Database) -> None:
    assert projects.check_tier(None, []) is None
    assert projects.check_tier("gold", ["gold"]) == "gold"
    with pytest.raises(RequestError, match="There is no tier 'silver'; there are: gold "):
        projects.check_tier("silver", ["gold"])
    with pytest.raises(RequestError, match="there are: none "):
        projects.check_tier("silver", [])
