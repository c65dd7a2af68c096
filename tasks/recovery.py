"""What housekeeping finds of batches, or of jobs: past their window, past help, or without their message."""

import logging
from collections.abc import Callable
from typing import NamedTuple, Self

from sqlalchemy.orm import Session

from store.batches import Batches
from store.jobs.lifecycle import Jobs
from store.work.lifecycle import MESSAGE_SECONDS
from tasks.context import AppContext

log = logging.getLogger(__name__)


class Recovered(NamedTuple):
    """The ids of batches, or of jobs, and what a tick has done to them."""

    expired: list[str]
    given_up: list[str]
    unvalidated: list[str]

    @classmethod
    def of(cls, session: Session, work: Batches | Jobs) -> Self:
        """End what is past its window or past help, and claim what was not validated."""
        return cls(work.expire(session), work.give_up(session), work.claim_validatable(session, MESSAGE_SECONDS))

    def announce(
        self,
        context: AppContext,
        noun: str,
        validate: Callable[[str], None],
        publish: Callable[[AppContext, str], None],
    ) -> None:
        for work_id in self.expired:
            log.warning("completion window has passed", extra={f"{noun}_id": work_id})
        for work_id in self.given_up:
            log.error(f"{noun} given up", extra={f"{noun}_id": work_id})
            publish(context, work_id)
        for work_id in self.unvalidated:
            validate(work_id)
