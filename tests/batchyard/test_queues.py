"""Every task has a queue, and every queue one kind of worker."""

from __future__ import annotations

from fnmatch import fnmatch

from batchyard import queues
from tasks import app


def test_every_task_has_one_route_and_every_route_a_task() -> None:
    names = [name for name in app.app.tasks if not name.startswith("celery.")]
    routes = {name: [pattern for pattern in queues.ROUTES if fnmatch(name, pattern)] for name in names}
    assert {name: patterns for name, patterns in routes.items() if len(patterns) != 1} == {}
    assert {pattern for (pattern,) in routes.values()} == set(queues.ROUTES)


def test_every_queue_belongs_to_one_kind_of_worker() -> None:
    assert sorted([queues.BATCHES, *queues.WAITING, *queues.HOUSEKEEPER]) == sorted(queues.NAMES)
    assert {route["queue"] for route in queues.ROUTES.values()} == set(queues.NAMES)


def test_housekeeping_has_processes_beside_those_that_validate_and_finish() -> None:
    assert [queues.housekeeper_processes(segments) for segments in (1, 2, 3, 10)] == [3, 3, 4, 7]
    assert queues.segment_threads(2) == 2 * queues.segment_threads(1)
