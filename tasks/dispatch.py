"""Dispatch: the one place that decides which segments run next, within the limits."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from store import segments
from tasks import messages
from tasks.house import House

log = logging.getLogger(__name__)


def choose(
    waiting: Iterable[tuple[int, str]], active: Mapping[str, int], limits: Mapping[str, int], total: int
) -> list[int]:
    """Ids of the segments to start now, in the order given.

    Args:
        waiting: (segment id, model), the most urgent first.
        active: slots in use, per model.
        limits: most slots in use at once, per model; a model that is not served any more has none.
        total: most slots in use at once, over all models.
    """
    used = dict(active)
    chosen: list[int] = []
    for segment_id, model in waiting:
        if sum(used.values()) >= total:
            break
        if used.get(model, 0) < limits.get(model, 0):
            used[model] = used.get(model, 0) + 1
            chosen.append(segment_id)
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
