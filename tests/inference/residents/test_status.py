"""An engine's status is read whatever version of its actor has written it."""

from __future__ import annotations

from inference.residents.status import ResidentStatus


def test_a_status_survives_its_way_through_ray_and_redis() -> None:
    process = {"place": "here", "pid": 7, "created_at": 1.5}
    status = ResidentStatus(name="e", model="m", state="busy", in_flight=2, seen_at=1.0, gpu_ids=["3"], process=process)
    assert ResidentStatus.model_validate(status.model_dump()) == status
    assert ResidentStatus.model_validate_json(status.model_dump_json()) == status


def test_fields_that_another_version_lacks_or_adds_do_not_matter() -> None:
    status = ResidentStatus.model_validate({"name": "e", "model": "m", "state": "idle", "seen_at": 1.0, "mood": "good"})
    assert (status.answered, status.capacity, status.process) == (0, None, {})
