"""How commands that wait for answers end: failures are an exit code, flaws of answers the last line."""

from __future__ import annotations

from typing import Any

import pytest

from batchyard.cli import watch

FLAWS = {"cut_off": 2, "empty": 0, "invalid": 1}
SAID = "of the answers, 2 cut off at their limit of tokens, 1 not in the form that was asked for"
COUNTS = {"total": 3, "completed": 3, "failed": 0, "stuck": 0}
COMMANDS = pytest.mark.parametrize(
    "document", [{"id": "batch_1", "object": "batch"}, {"id": "job_1", "object": "job", "recipe": "rollout"}]
)


def ended(document: dict[str, Any], **changed: Any) -> dict[str, Any]:
    ours = {"report": None, "metrics": None, **FLAWS}
    return document | {"status": "completed", "errors": None, "request_counts": COUNTS, "batchyard": ours} | changed


@COMMANDS
def test_answers_with_flaws_are_no_failure_and_the_last_line(
    document: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    watch.check_success(ended(document))
    assert capsys.readouterr().err == f"batchyard: warning: {SAID}\n"
    watch.check_success(ended(document, batchyard={"report": None, "metrics": None}))
    watch.check_success(ended(document, status="in_progress"))
    assert capsys.readouterr().err == ""


@COMMANDS
def test_a_failure_names_the_flaws_of_the_answers_too(document: dict[str, Any]) -> None:
    with pytest.raises(watch.Unsuccessful, match=f"1 of 3 .* failed; .* tells why; {SAID}$"):
        watch.check_success(ended(document, request_counts=COUNTS | {"completed": 2, "failed": 1}))
    with pytest.raises(watch.Unsuccessful, match=f" is cancelled; {SAID}$"):
        watch.check_success(ended(document, status="cancelled"))
