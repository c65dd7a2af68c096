"""Dispatch: the one place that decides which segments run next, within the limits."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from store import segments
from store.segments import Waiting
from tasks import messages
from tasks.house import House

log = logging.getLogger(__name__)


def choose(
    waiting: Sequence[Waiting], active: Mapping[tuple[str, str], int], limits: Mapping[str, int], total: int
) -> list[int]:
    """Ids of the segments to start now: the earliest deadline first, and of each project at least its share.

    The slots are shared evenly among the projects that have work. A project below its share goes before those that
    have theirs, however early their deadlines; a slot that no such project can use goes to the earliest deadline.

    Args:
        waiting: the most urgent first.
        active: slots in use, per model and project.
        limits: most slots in use at once, per model; a model that is not served any more has none.
        total: most slots in use at once, over all models.
    """
    models: Counter[str] = Counter()
    projects: Counter[str] = Counter()
    for (model, project_id), number in active.items():
        models[model] += number
        projects[project_id] += number
    share = total / max(1, len(projects.keys() | {entry.project_id for entry in waiting}))
    left = list(waiting)
    chosen: list[int] = []
    while projects.total() < total:
        able = [entry for entry in left if models[entry.model] < limits.get(entry.model, 0)]
        if not able:
            break
        entry = next((entry for entry in able if projects[entry.project_id] < share), able[0])
        left.remove(entry)
        chosen.append(entry.segment_id)
        models[entry.model] += 1
        projects[entry.project_id] += 1
    return chosen


def run(house: House) -> None:
    """Admit as many segments as the limits allow and ring for them.

    Counting and admitting is one serial transaction over all processes, so the limit holds however many workers
    and web servers call this at once.
    """
    limits = {name: spec.max_segments for name, spec in house.models.items()}
    total = house.settings.max_segments
    with house.database.read() as session:
        # Whoever frees a slot or plans a batch comes here after it, so what is true now needs no lock.
        if not segments.any_waits(session) or sum(segments.active(session).values()) >= total:
            return
    with house.database.write(serial=True) as session:
        active = segments.active(session)
        chosen = choose(segments.waiting(session, total), active, limits, total)
        seconds = house.settings.queue_seconds
        admitted = [(chosen_id, segments.dispatch(session, chosen_id, seconds)) for chosen_id in chosen]
    for segment_id, epoch in admitted:
        if epoch is not None:
            messages.segment(segment_id, epoch)
            log.info("dispatched", extra={"segment_id": segment_id, "epoch": epoch})
