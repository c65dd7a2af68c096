"""Deaths: those of engines in a segment's run, recorded for its batch and its model."""

import logging
from dataclasses import asdict

from batchyard.errors import UnavailableError
from batchyard.models import is_derived
from inference.answers import Death
from store import holds, segments
from tasks.context import AppContext
from tasks.execution import tally

log = logging.getLogger(__name__)


class DeathLog:
    """Logs, counts and records the deaths of engines in a segment's run."""

    def __init__(self, context: AppContext, segment: segments.SegmentLease) -> None:
        self._context = context
        self._segment = segment
        self._unrecorded: list[Death] = []
        self._any = False

    def add(self, death: Death) -> None:
        """Record a death, or keep it while the database is away, for which no run need end."""
        facts = {name: value for name, value in asdict(death).items() if name != "engine"}
        ids = {"batch_id": self._segment.batch_id, "job_id": self._segment.job_id, "segment_id": self._segment.lease.id}
        log.error("engine died: %s", death.reason, extra={**ids, **facts})
        self._any = True
        self._unrecorded.append(death)
        self._record()

    def close(self) -> None:
        """Record what is left; hold a model, unless a job derived it, whose engines die and answer nothing."""
        self._record()
        model = self._segment.model["name"]
        if not self._any or is_derived(model):
            return
        try:
            with self._context.database.write() as session:
                hold = holds.hold_after_deaths(session, model)
        except UnavailableError as error:
            log.warning("model not held: %s", error, extra={"model": model})
            return
        if hold is not None:
            log.error("model on hold: %s", hold.reason, extra={"batch_id": self._segment.batch_id, "model": model})

    def _record(self) -> None:
        while self._unrecorded:
            if not record(self._context, self._unrecorded[0], self._segment.batch_id):
                return
            self._unrecorded.pop(0)


def record(context: AppContext, death: Death, batch_id: str | None) -> bool:
    """Record a death for a batch, or for none, and count a new one. Return False if the database is away."""
    try:
        with context.database.write() as session:
            is_new = holds.record_death(session, batch_id, **asdict(death))
    except UnavailableError as error:
        log.warning("death of an engine not recorded: %s", error, extra={"batch_id": batch_id, "model": death.model})
        return False
    if is_new:
        tally.count(context, death.model, {"engine_deaths": 1})
    return True
