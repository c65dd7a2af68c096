"""A job's requests without an answer are in a buffer or out, each in one place, and counted by model."""

from __future__ import annotations

from jobs.intake.requests import PreparedRequest
from jobs.running.live_item import OpenRequests


def request(position: int, model: str = "a", stage: str = "draft", sample: int = 0) -> PreparedRequest:
    name = f"{position}/{stage}.1.{sample}"
    return PreparedRequest(position, 1, 1, stage, 1, sample, 0, model, name, b"{}", b"", None, b"", None)


def test_a_request_is_buffered_until_it_stands_in_a_segment_and_then_out_until_its_answer() -> None:
    requests = OpenRequests()
    for position in range(3):
        requests.add(request(position, sample=position))
    assert (requests.pending(), requests.total()) == ({"a": 3}, 3)
    buffer = requests.buffers["draft", "a"]
    requests.issue([buffer.popleft(), buffer.popleft()], first_line=5)
    assert (requests.pending(), requests.unanswered, requests.total()) == ({"a": 1}, {"a": 2}, 3)
    assert requests.take("draft", 6) == (1, 1)
    requests.note_answer("a")
    assert (requests.unanswered, requests.answered, requests.total()) == ({"a": 1}, {"a": 1}, 2)


def test_an_answer_that_comes_twice_or_was_never_asked_for_belongs_to_no_request() -> None:
    requests = OpenRequests()
    requests.issue([request(0)], first_line=1)
    assert requests.take("review", 1) is None, "lines are those of a stage"
    assert requests.take("draft", 1) == (0, 0)
    assert requests.take("draft", 1) is None


def test_models_and_stages_have_buffers_of_their_own() -> None:
    requests = OpenRequests()
    for model, stage in (("a", "draft"), ("a", "review"), ("b", "draft")):
        requests.add(request(0, model, stage))
    assert requests.pending() == {"a": 2, "b": 1}
    assert all(len(buffer) == 1 for buffer in requests.buffers.values())
