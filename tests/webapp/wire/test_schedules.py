"""The input of a schedule: one thing, and no other."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from webapp.wire.schedules import ScheduleInput, UpdateSchedule


@pytest.mark.parametrize("values", [{}, {"file_id": "file_1", "template": "x"}, {"file": "file_1"}])
def test_a_schedule_has_exactly_one_input(values: dict[str, Any]) -> None:
    assert ScheduleInput(file_id="file_1").template is None
    with pytest.raises(ValidationError):
        ScheduleInput.model_validate(values)


def test_a_change_knows_what_was_left_out() -> None:
    assert UpdateSchedule.model_validate({"name": "nightly"}).model_fields_set == {"name"}
