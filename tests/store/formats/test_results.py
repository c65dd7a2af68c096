"""A reader of results meets each request with its own answer."""

from __future__ import annotations

import io
import json

from store.formats import results


def test_each_request_meets_its_own_line_of_either_file() -> None:
    def line(custom_id: str, status: int | None) -> bytes:
        body = {"choices": [{"message": {"content": f"to {custom_id}"}}]} if status == 200 else {"error": {}}
        response = None if status is None else {"status_code": status, "body": body}
        return json.dumps(
            {"custom_id": custom_id, "response": response, "error": None if status else {"code": "x"}}
        ).encode()

    source = io.BytesIO(
        b"\n".join([json.dumps({"custom_id": i, "body": {"n": i}}).encode() for i in "abcd"] + [b"", b""])
    )
    found = list(results.rows(source, [line("a", 200), line("d", 200)], [line("b", 400), line("c", None)]))
    assert [(row.custom_id, row.status_code, row.text) for row in found] == [
        ("a", 200, "to a"),
        ("b", 400, None),
        ("c", None, None),
        ("d", 200, "to d"),
    ]
