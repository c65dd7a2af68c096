"""The fields of forms: what a record says stands in them, and comes back from them as it was."""

from __future__ import annotations

from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from batchyard.errors import RequestError
from tasks.context import AppContext
from tests.support.webapps import requested
from webapp.pages import forms
from webapp.pages.forms import Problem

OPTIONS: dict[str, Any] = {
    "completion_window": "2h",
    "metadata": {"team": "a"},
    "post_process": [{"step": "parquet"}, {"step": "score", "method": "numeric"}],
    "on_invalid": "skip",
    "priority": "high",
}
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8) | st.text('ab="\\\n\r ', max_size=6)


def sent(fields: dict[str, str]) -> dict[str, str]:
    """The fields as a browser sends them: the line breaks of a text area as CR LF."""
    return {
        name: value.replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\r\n") for name, value in fields.items()
    }


def test_the_options_of_a_batch_come_back_from_their_fields() -> None:
    assert forms.batch_options(sent(forms.option_fields(OPTIONS))) == OPTIONS


@given(st.dictionaries(TEXT.filter(lambda name: name), TEXT, max_size=4))
def test_any_metadata_comes_back_from_its_field(metadata: dict[str, str]) -> None:
    fields = forms.option_fields(OPTIONS | {"metadata": metadata})
    assert forms.batch_options(sent(fields))["metadata"] == (metadata or None)


@pytest.mark.parametrize(
    ("text", "metadata"),
    [
        ("", None),
        ("\r\n  \r\n", None),
        ("a=b\r\n\r\n c = d e ", {"a": "b", "c": "d e"}),
        ("a=b=c", {"a": "b=c"}),
        ("a=", {"a": ""}),
        ('say="hello" she said', {"say": '"hello" she said'}),
    ],
)
def test_metadata_is_a_name_and_a_value_on_each_line(text: str, metadata: dict[str, str] | None) -> None:
    assert forms.metadata(text) == metadata


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a=b\n\na=c", "Line 3 of the metadata has a name twice"),
        ("a", "Line 1 of the metadata has no name=value"),
        ("=b", "Line 1 of the metadata has no name=value"),
    ],
)
def test_metadata_that_cannot_be_meant_is_refused_with_its_line(text: str, says: str) -> None:
    with pytest.raises(RequestError, match=says) as refused:
        forms.metadata(text)
    assert refused.value.param == "metadata"


def test_a_step_that_was_not_ticked_is_not_sent_though_its_options_are() -> None:
    assert forms.batch_options({"step.score.method": "numeric"})["post_process"] == []
    ticked = {"step.score": "1", "step.score.method": ""}
    assert forms.batch_options(ticked)["post_process"] == [{"step": "score"}], "a blank option has its default"


def test_an_option_of_a_step_without_a_value_has_no_field() -> None:
    fields = forms.option_fields(OPTIONS | {"post_process": [{"step": "score", "method": None, "status": "completed"}]})
    assert [name for name in fields if name.startswith("step.")] == ["step.score"]


def test_what_is_blank_in_a_form_has_its_default() -> None:
    assert forms.batch_options({"completion_window": " "}) == {
        "completion_window": "24h",
        "metadata": None,
        "post_process": [],
        "on_invalid": "fail",
        "priority": "normal",
    }
    assert forms.filled({"system": " ", "seed": "7"}, "system", "seed", "stop") == {"seed": "7"}


def test_a_text_area_has_the_line_breaks_that_were_typed() -> None:
    assert forms.filled({"system": "Be brief.\r\nBe kind."}, "system") == {"system": "Be brief.\nBe kind."}


@pytest.mark.parametrize(
    ("param", "field"),
    [
        ("url", "endpoint"),
        ("body.messages", "text"),
        ("batch.metadata", "metadata"),
        ("input.file_id", "file_id"),
        ("post_process.0", "post_process"),
        (None, None),
    ],
)
def test_a_problem_is_shown_at_the_field_of_its_parameter(param: str | None, field: str | None) -> None:
    assert Problem.of(RequestError("No.", param=param)) == Problem("No.", field)


def test_a_form_that_is_sent_twice_is_known_by_its_key_and_what_it_submits(
    client: FlaskClient, context: AppContext
) -> None:
    def key(once: str | None, action: str, content: str) -> Any:
        data = {} if once is None else {"once": once}
        with requested(client, "/new", method="POST", data=data):
            return forms.idempotency(action, content)

    assert key(None, "new", "a") is None
    one = key("k", "new", "a")
    assert one == key("k", "new", "a")
    assert len({one, key("j", "new", "a"), key("k", "retry", "a"), key("k", "new", "b")}) == 4
    assert len(key("k" * 1000, "new", "a" * 64)[0]) < 255


def test_only_tasks_that_a_model_serves_are_offered_and_each_model_once(client: FlaskClient) -> None:
    page = client.get("/new").text
    assert '<option value="/v1/chat/completions">Chat completions</option>' in page and "/v1/embeddings" not in page
    assert page.count(' value="echo"') == 1
