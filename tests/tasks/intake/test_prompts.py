"""Prompts become requests as their endpoint has them."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.intake import prompts
from tasks.intake.prompts import RequestTemplate

MESSAGES = RequestTemplate("/v1/messages", "mini", "Be brief.", {"max_tokens": 9})
RESPONSES = RequestTemplate("/v1/responses", "mini", "Be brief.", {})


def requests(template: RequestTemplate, kind: prompts.Format, text: str) -> list[dict[str, Any]]:
    return [template.request(prompt) for prompt in prompts.of_file(io.BytesIO(text.encode()), kind, None)]


def test_instructions_stand_where_the_endpoint_has_them() -> None:
    (message,) = requests(MESSAGES, "txt", "hello")
    assert message["body"] == {
        "model": "mini",
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 9,
    }
    (response,) = requests(RESPONSES, "txt", "hello")
    assert response["body"] == {"model": "mini", "instructions": "Be brief.", "input": "hello"}


def test_a_request_keeps_the_row_that_its_template_was_filled_with() -> None:
    table = io.BytesIO(b"shop,review,custom_id\nAda,good,a\n")
    (prompt,) = prompts.of_file(table, "csv", prompts.template_of("Label: {review}"))
    request = RequestTemplate("/v1/chat/completions", "m", None, {}).request(prompt)
    assert request["row"] == {"shop": "Ada", "review": "good", "custom_id": "a"}
    (plain,) = prompts.of_file(io.BytesIO(b"prompt\nhi\n"), "csv", None)
    assert "row" not in RequestTemplate("/v1/chat/completions", "m", None, {}).request(plain)


def test_an_index_of_pandas_is_no_column_beside_the_only_one() -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"question": ["Why?"], "__index_level_0__": [7]}), file)
    file.seek(0)
    (prompt,) = prompts.of_file(file, "parquet", None)
    assert prompt.content == "Why?"


def test_cells_that_are_no_json_are_not_kept_with_a_request() -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"review": ["good"], "photo": [b"\x89PNG"], "wei": [2**60]}), file)
    file.seek(0)
    (prompt,) = prompts.of_file(file, "parquet", prompts.template_of("Label: {review}"))
    assert prompt.row == {"review": "good", "wei": 2**60}
