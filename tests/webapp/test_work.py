"""What the objects of batches and jobs have in common is filled alike."""

from __future__ import annotations

from typing import Any

import pytest

from store.records import Batch, Job
from tasks.scheduling.forecast import Forecast
from webapp import work
from webapp.wire.batches import BatchObject
from webapp.wire.jobs import JobObject
from webapp.work import Related

TIMES = {"due_at": 200, "expires_at": 100}
COMMON = {"status": "in_progress", "sla": "on_track", "models": {}, "post_process": [], **TIMES}
NEW = Related()


def extension(record: Batch | Job, *, held: bool = False, deaths: Any = (), related: Related = NEW) -> Any:
    return work.extension_fields(record, related, held=held, deaths=deaths)


@pytest.mark.parametrize("record", [Batch, Job])
def test_what_does_not_move_is_at_risk_unless_it_is_late_already(record: type[Batch] | type[Job]) -> None:
    assert extension(record(**COMMON))["sla"] == "on_track"
    assert extension(record(**COMMON), held=True)["sla"] == "at_risk"
    assert extension(record(**COMMON | {"sla": "late"}), held=True)["sla"] == "late"


@pytest.mark.parametrize("record", [Batch, Job])
def test_what_is_paused_has_no_forecast(record: type[Batch] | type[Job], frozen_time: float) -> None:
    related = Related(Forecast(frozen_time + 60, frozen_time + 30, frozen_time - 5))
    moving = extension(record(**COMMON), related=related)
    etas = [moving[f"eta_{name}seconds"] for name in ("", "earliest_", "latest_")]
    assert sorted(etas)[0] == 0.0 and max(etas) == pytest.approx(60)
    paused = extension(record(**COMMON, paused_at=1), related=related)
    assert [paused[f"eta_{name}seconds"] for name in ("", "earliest_", "latest_")] == [None] * 3


def test_deaths_of_engines_are_counted_over_all_batches_and_the_last_one_is_shown() -> None:
    def died(at: int) -> dict[str, Any]:
        last = {"at": at, "replica": 0, "reason": "out of memory", "requests": 3, "next": "runs_again"}
        return {"deaths": 2, "last": last}

    fields = extension(Job(**COMMON), deaths=[{"one": died(5)}, None, {"two": died(9), "one": died(7)}])
    assert fields["engine_deaths"] == 6
    assert (fields["last_engine_death"]["model"], fields["last_engine_death"]["at"]) == ("two", 9)
    assert extension(Job(**COMMON))["last_engine_death"] is None


@pytest.mark.parametrize(("record", "model"), [(Batch, BatchObject), (Job, JobObject)])
def test_the_fields_of_the_record_are_all_but_those_that_are_computed(record: Any, model: Any) -> None:
    errors = [{"code": "invalid_request", "line": 3, "message": "no model", "param": None}]
    fields = work.fields(record(**COMMON, errors=errors, request_metadata={"team": "a"}), model)
    assert fields["errors"].data[0].line == 3
    assert fields["metadata"] == {"team": "a"}
    assert model.model_fields.keys() - fields.keys() == {"object", "request_counts", "usage", "batchyard"}
