"""/docs without scripts: what is in the OpenAPI document stands there in words."""

from __future__ import annotations

import re
from typing import Any

import pytest
from flask.testing import FlaskClient

from webapp import reference


@pytest.fixture
def document(client: FlaskClient) -> dict[str, Any]:
    answer: dict[str, Any] = client.get("/openapi.json").get_json()
    return answer


def test_every_operation_and_every_model_of_the_document_is_on_the_page(
    client: FlaskClient, document: dict[str, Any]
) -> None:
    page = client.get("/docs").text
    plain = page.partition("<noscript>")[2].partition("</noscript>")[0]
    for path, methods in document["paths"].items():
        for method, entry in methods.items():
            assert f"{method.upper()} {path}</code>" in plain
            for parameter in entry.get("parameters", []):
                assert f"<code>{parameter['name']}</code>" in plain
    for name, schema in document["components"]["schemas"].items():
        if schema.get("properties"):
            section = plain.partition(f'id="model-{name}"')[2].partition("</table>")[0]
            assert set(re.findall(r"<code>([^<]*)</code>", section)) == set(schema["properties"]), name
    assert set(re.findall(r'href="#model-([^"]*)"', plain)) <= set(re.findall(r'id="model-([^"]*)"', plain))


def test_the_type_of_a_value_is_said_in_words(document: dict[str, Any]) -> None:
    fields = {name: {row.name: row for row in rows} for name, rows in reference.models(document).items()}
    assert fields["ItemObject"]["state"].kind.startswith("pending | live | ")
    assert fields["ItemObject"]["stage"].kind == "string or null"
    assert fields["ItemPage"]["data"].kind == "list of ItemObject"
    assert fields["ItemPage"]["data"].models == ["ItemObject"]
    (items,) = (one for one in reference.operations(document)["jobs"] if one.id == "jobs.items")
    assert (items.method, items.answers["200"], items.answers["404"]) == ("GET", "ItemPage", "ErrorObject")
    assert {row.name: row.kind for row in items.parameters}["limit"] == "query: integer, optional"


def test_there_is_a_way_back_from_the_docs(client: FlaskClient) -> None:
    assert '<header class="way-back"><a href="/">' in client.get("/docs").text
