"""The input of a retry: the lines of a batch that have no good answer, byte for byte."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from batchyard.endpoints import output_lines
from batchyard.errors import ConflictError, RequestError
from store.records import Batch, File
from tasks.context import AppContext
from tasks.intake import retry_input
from tasks.intake.retry_input import Corrections
from tests.support.webapps import on_sqlite

pytestmark = on_sqlite

Upload = Callable[[bytes], File]


def line(custom_id: str, blanks: str = "") -> bytes:
    """A request as a client has written it, with blanks of its own."""
    return f'{{{blanks}"custom_id":{blanks}"{custom_id}", "body": {{}}}}\n'.encode()


def error(custom_id: str, code: str = "request_timeout") -> bytes:
    text = output_lines.line(custom_id, None, None, {"code": code, "message": "too long"})
    return text.encode() + b"\n"


@pytest.fixture
def batch(project: str, upload: Upload) -> Callable[..., Batch]:
    """Makes an ended batch of this input and these errors, which is not saved."""

    def make(source: bytes, errors: bytes | None, status: str = "completed") -> Batch:
        error_file_id = None if errors is None else upload(errors).id
        return Batch(
            id="batch_1",
            project_id=project,
            status=status,
            input_file_id=upload(source).id,
            error_file_id=error_file_id,
        )

    return make


def test_the_lines_without_a_good_answer_stay_as_they_are_and_in_their_order(
    context: AppContext, batch: Callable[..., Batch]
) -> None:
    source = line("a") + line("b", "  ") + b"\r\n" + line("c").replace(b"\n", b"\r\n") + line("d").rstrip()
    retried = retry_input.write(context, batch(source, error("b") + error("c") + error("d")))
    assert context.artifacts.read(retried.sha256) == line("b", "  ") + line("c") + line("d")


@pytest.mark.parametrize(
    ("status", "errors", "says"),
    [
        ("in_progress", b"", "wait for its end"),
        ("failed", b"", "corrected"),
        ("completed", None, "nothing to retry"),
    ],
)
def test_a_batch_that_cannot_be_retried_says_why(
    context: AppContext, batch: Callable[..., Batch], status: str, errors: bytes | None, says: str
) -> None:
    with pytest.raises(ConflictError, match=says) as refused:
        retry_input.write(context, batch(line("a"), errors, status))
    assert refused.value.param == "batch_id"


def test_a_batch_whose_files_are_gone_says_which(context: AppContext, batch: Callable[..., Batch]) -> None:
    gone = batch(line("a"), error("a"))
    gone.error_file_id = "file_gone"
    with pytest.raises(ConflictError, match="The error file of this batch was deleted"):
        retry_input.write(context, gone)


def test_lines_that_are_no_requests_are_not_sent_again(context: AppContext, batch: Callable[..., Batch]) -> None:
    refusal = {"code": "invalid_json_line", "message": "no JSON", "param": None}
    skipped = output_lines.invalid(1, "a", refusal).encode() + b"\n"
    with pytest.raises(ConflictError, match="No valid request is left"):
        retry_input.write(context, batch(line("a"), skipped))
    retried = retry_input.write(context, batch(line("a") + line("b"), skipped + error("b")))
    assert context.artifacts.read(retried.sha256) == line("b")


def test_a_retry_goes_by_line_where_a_refused_line_has_the_id_of_a_valid_one(
    context: AppContext, batch: Callable[..., Batch]
) -> None:
    refused = [output_lines.invalid(number, "a", {"code": "invalid_json_line"}).encode() + b"\n" for number in (1, 4)]
    source = line("a", "  ") + b"\n" + line("a") + line("a", "   ")
    retried = retry_input.write(context, batch(source, refused[0] + error("a") + refused[1]))
    assert context.artifacts.read(retried.sha256) == line("a")


def test_only_what_failed_for_a_passing_reason_is_sent_again(context: AppContext, batch: Callable[..., Batch]) -> None:
    source = line("a") + line("b") + line("c")
    errors = error("a", "engine_died") + error("b") + error("c", "engine_died")
    retried = retry_input.write(context, batch(source, errors), only_passing=True)
    assert context.artifacts.read(retried.sha256) == line("b")
    with pytest.raises(ConflictError, match="would come again") as refused:
        retry_input.write(context, batch(line("a"), error("a", "engine_died")), only_passing=True)
    assert refused.value.code == "nothing_to_retry"


def invalid(number: int, custom_id: str | None) -> bytes:
    refusal = {"code": "invalid_request", "message": "temperature 9", "param": "body.temperature"}
    return output_lines.invalid(number, custom_id, refusal).encode() + b"\n"


def test_a_corrected_line_takes_the_place_of_the_one_it_names(
    context: AppContext, batch: Callable[..., Batch], upload: Upload
) -> None:
    source = line("a") + line("b") + b"no JSON\n" + line("c") + line("d")
    broken = batch(source, error("b") + invalid(3, None) + invalid(4, "c") + error("d"))
    corrected = upload(b'{"custom_id":"c","body":{"n":1}}\n\n{"line":3,"custom_id":"x","body":{}}\n' + line("b"))
    retried = retry_input.write(context, broken, fixed=Corrections(context, corrected))
    assert context.artifacts.read(retried.sha256).splitlines() == [
        b'{"custom_id":"b","body":{}}',
        b'{"custom_id":"x","body":{}}',
        b'{"custom_id":"c","body":{"n":1}}',
        line("d").rstrip(),
    ]


def test_of_a_batch_that_failed_validation_all_lines_are_sent_with_the_corrected_ones_among_them(
    context: AppContext, batch: Callable[..., Batch], upload: Upload
) -> None:
    failed = batch(line("a") + line("b"), None, "failed")
    corrected = upload(b'{"line": 2, "custom_id": "b", "body": {"n": 1}}')
    retried = retry_input.write(context, failed, fixed=Corrections(context, corrected))
    assert context.artifacts.read(retried.sha256) == line("a") + b'{"custom_id":"b","body":{"n":1}}\n'


@pytest.mark.parametrize(
    ("corrected", "says"),
    [
        (line("b") + line("zzz"), "Line 2 of the corrected lines: no request without an answer is 'zzz'"),
        (line("a"), "Line 1 .* 'a'"),
        (b'{"line": 9}', "no request without an answer is '9'"),
        (b'{"body": {}}', "Line 1 .* names neither a line nor a custom_id"),
        (b"{", "Line 1 of the corrected lines: The line is not valid JSON"),
    ],
)
def test_a_correction_of_no_line_without_an_answer_is_refused(
    context: AppContext, batch: Callable[..., Batch], upload: Upload, corrected: bytes, says: str
) -> None:
    with pytest.raises(RequestError, match=says):
        fixed = Corrections(context, upload(corrected))
        retry_input.write(context, batch(line("a") + line("b"), error("b")), fixed=fixed)
