"""The OpenAPI document tells what a client has to know of each operation, and /docs shows it."""

from __future__ import annotations

import re

from flask.testing import FlaskClient


def test_each_operation_has_a_summary_a_tag_and_an_id_of_its_own(client: FlaskClient) -> None:
    paths = client.get("/openapi.json").get_json()["paths"]
    operations = [entry for methods in paths.values() for entry in methods.values()]
    assert len(operations) > 60
    ids = [entry["operationId"] for entry in operations]
    assert len(set(ids)) == len(ids)
    assert [entry["operationId"] for entry in operations if not entry.get("summary") or len(entry["tags"]) != 1] == []


def test_an_operation_that_needs_a_key_says_that_it_may_be_refused(client: FlaskClient) -> None:
    paths = client.get("/openapi.json").get_json()["paths"]
    public = {path for path, methods in paths.items() for entry in methods.values() if "401" not in entry["responses"]}
    assert public and not [path for path in public if path.startswith("/v1/")]


def test_a_file_is_sent_as_bytes_and_a_cancellation_needs_no_body(client: FlaskClient) -> None:
    paths = client.get("/openapi.json").get_json()["paths"]
    content = paths["/v1/files/{file_id}/content"]["get"]["responses"]["200"]["content"]
    (schema,) = [entry["schema"] for entry in content.values()]
    assert schema == {"type": "string", "format": "binary"}
    assert paths["/v1/batches/{batch_id}/retry"]["post"]["requestBody"]["required"] is False


def test_only_files_of_swagger_are_sent(client: FlaskClient) -> None:
    names = re.findall(r"/docs/(swagger_[\w.]+)", client.get("/docs").text)
    assert names and all(client.get(f"/docs/{name}").status_code == 200 for name in names)
    assert client.get("/docs/index.html").status_code == 404
    assert client.get("/docs/swagger_none.js").status_code == 404
