"""Dry runs of jobs: what a job would be, as it crosses the wire."""

from __future__ import annotations

import time
from collections.abc import Sequence

from jobs.submission.dry_run import JobOutlook
from webapp import work
from webapp.wire.jobs import CellObject, DryRun, DryRunStage, FirstRequestObject, WarningObject
from webapp.wire.work import BatchErrors


def outlook_to_wire(outlook: JobOutlook) -> DryRun:
    """Return what a job would be as it crosses the wire."""
    estimate, left = outlook.estimate, outlook.due_at - time.time()
    earliest, latest = (
        end if estimate.seconds is None else estimate.seconds for end in (estimate.earliest, estimate.latest)
    )
    is_late, is_in_time = earliest is not None and earliest > left, latest is not None and latest <= left
    return DryRun(
        items=estimate.items,
        stages=[DryRunStage(**stage._asdict()) for stage in estimate.stages],
        eta_seconds=estimate.seconds,
        eta_earliest_seconds=estimate.earliest,
        eta_latest_seconds=estimate.latest,
        due_at=outlook.due_at,
        on_time=False if is_late else True if is_in_time else None,
        cost=None if estimate.parts is None else work.cost_of(estimate.parts),
        requests=[FirstRequestObject(**request._asdict()) for request in estimate.requests],
        errors=BatchErrors.model_validate({"data": estimate.errors}) if estimate.errors else None,
        config_sha256=outlook.config_sha256,
        work_sha256=outlook.work_sha256,
        same_as=outlook.same,
        warnings=warnings_to_wire(outlook.warnings),
        cells=[CellObject(**cell.model_dump(include=set(CellObject.model_fields))) for cell in estimate.cells],
    )


def warnings_to_wire(warnings: Sequence[tuple[str, str]]) -> list[WarningObject]:
    """Return warnings, each a code and a message, as they cross the wire."""
    return [WarningObject(code=code, message=message) for code, message in warnings]
