"""Accounting of live requests: usage is written to the database in groups, once a second, and counted for /metrics.

What is not written yet is lost if this process is killed: the usage of a second, or of as long as the database is away.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from batchyard import tariffs
from batchyard.endpoints.live_wire import Tier
from batchyard.errors import UnavailableError
from batchyard.models import Tariff
from batchyard.tariffs import Amounts
from store import holds
from store.accounting import usage
from tasks.context import AppContext
from tasks.live import traffic
from tasks.live.traffic import Counts, Kind

WRITE_SECONDS = 1.0

log = logging.getLogger(__name__)


class Subject(NamedTuple):
    """Whose usage something is, and of what."""

    project_id: str
    key_id: str
    model: str
    tier: Tier


@dataclass
class _Group:
    """What a subject has used since the last write."""

    price: Tariff | None
    amounts: Amounts = tariffs.NOTHING
    counts: Counts = field(default_factory=Counts)


class Accounting:
    """Collects what live requests have used, and writes it."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._groups: dict[Subject, _Group] = {}
        self._writing: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Begin to write, once a second."""
        self._writing = asyncio.create_task(self._write_on())

    async def stop(self) -> None:
        """Write what there is, and stop."""
        self._stopping.set()
        if self._writing is not None:
            await self._writing  # not cancelled: what it is writing would be written nowhere

    def add(
        self, subject: Subject, price: Tariff | None, report: Mapping[str, Any], first: float | None, gaps: list[float]
    ) -> Amounts:
        """Add one request, and return what it used.

        Args:
            report: the engine's, with its tokens and times; `failed` if it has no answer.
            first: seconds from its arrival to the first piece of its stream; None of a whole answer.
            gaps: seconds between the later pieces.
        """
        group = self._groups.setdefault(subject, _Group(price))
        failed = bool(report.get("failed") or report.get("error"))
        tokens = {name: int(report.get(name) or 0) for name in ("input_tokens", "cached_tokens", "output_tokens")}
        milliseconds = round(1000 * float(report.get("shared_seconds") or 0.0))
        amounts = Amounts(
            requests=1, failed=int(failed), shared_requests=0, **tokens, bytes=0, milliseconds=milliseconds
        )
        group.amounts = group.amounts.plus(amounts)
        seconds: dict[Kind, list[float]] = {
            "first": [] if first is None or failed else [first],
            "queue": [report["queue_seconds"]] if "queue_seconds" in report else [],
            "gap": gaps,
        }
        answered = tokens["output_tokens"]
        group.counts.add(
            subject.tier, failed=failed, output_tokens=answered, milliseconds=milliseconds, seconds=seconds
        )
        return amounts

    async def _write_on(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), WRITE_SECONDS)
            groups, self._groups = self._groups, {}
            for subject, group in (await asyncio.to_thread(self._written, groups) if groups else {}).items():
                current = self._groups.setdefault(subject, _Group(group.price))
                current.amounts = current.amounts.plus(group.amounts)

    def _written(self, groups: dict[Subject, _Group]) -> dict[Subject, _Group]:
        """Write the groups; return those that could not be."""
        by_model: defaultdict[str, Counts] = defaultdict(Counts)
        for subject, group in groups.items():
            by_model[subject.model].merge(group.counts)
        for model, counts in by_model.items():
            traffic.count(self._context, model, counts)
        try:
            with self._context.database.write() as session:
                for subject, group in groups.items():
                    usage.add_live(session, *subject[:3], group.price, group.amounts)
                for model in {name.model for name, one in groups.items() if one.amounts.requests > one.amounts.failed}:
                    holds.engine_answered(session, model)
        except UnavailableError as error:
            log.warning("usage of live requests not written yet: %s", error)
            return groups
        return {}
