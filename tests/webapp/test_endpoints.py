"""Every place that lists endpoints has those of the catalog, no other and none less."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from flask.testing import FlaskClient

from batchyard.cli import requests
from batchyard.endpoints.catalog import ENDPOINTS, PATHS
from store import keys
from tasks.context import AppContext, build
from tests.support.webapps import client_of, context_in
from tests.webapp.pages.conftest import signed_in

ALL = list(ENDPOINTS)


@pytest.fixture
def context(tmp_path: Path) -> Iterator[AppContext]:
    """A context whose one model serves every endpoint."""
    settings = context_in(tmp_path).settings
    settings.models.write_text(f'[models.every]\nengine = "echo"\nendpoints = {json.dumps(ALL)}\n')
    context = build(settings)
    yield context
    context.database.close()


@pytest.fixture
def client(context: AppContext) -> FlaskClient:
    return client_of(context)


@pytest.fixture
def visitor(context: AppContext, client: FlaskClient) -> FlaskClient:
    """The client, signed in to the pages."""
    with context.database.write() as session:
        key = keys.create(session, "default").key
    return signed_in(client, key)


def test_models_list_them(client: FlaskClient) -> None:
    (model,) = client.get("/v1/models").json["data"]
    assert model["batchyard"]["endpoints"] == ALL


def test_a_refusal_names_them(client: FlaskClient) -> None:
    body = {"input_file_id": "file-1", "endpoint": "/v1/nothing", "completion_window": "24h"}
    message = client.post("/v1/batches", json=body).json["error"]["message"]
    assert [path for path in re.findall(r"/[\w/]+\w", message) if path != "/v1/nothing"] == ALL


def test_each_of_their_names_is_taken(client: FlaskClient) -> None:
    for name, path in PATHS.items():
        body = {"input_file_id": "file-1", "endpoint": name, "completion_window": "24h"}
        assert client.post("/v1/batches", json=body).json["endpoint"] == path


def test_the_reference_of_the_api_names_them(client: FlaskClient) -> None:
    schemas = client.get("/openapi.json").json["components"]["schemas"]
    for of_endpoint in _named(schemas, "endpoint"):
        listed = of_endpoint.get("enum") or of_endpoint.get("examples")
        assert listed is None or set(listed) <= PATHS.keys(), of_endpoint
    assert any(set(ALL) <= {*(one.get("enum") or ())} for one in _named(schemas, "endpoint")), "one place has all"


def _named(value: Any, name: str) -> Iterator[dict[str, Any]]:
    """Yield the schemas of all properties of that name."""
    if isinstance(value, dict):
        if isinstance(value.get("properties"), dict) and name in value["properties"]:
            yield value["properties"][name]
        for inner in value.values():
            yield from _named(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _named(inner, name)


def test_the_form_of_a_new_batch_and_the_terminal_offer_them(visitor: FlaskClient) -> None:
    page = visitor.get("/new").text
    offered = re.search(r'<select[^>]*name="endpoint".*?</select>', page, re.DOTALL)
    assert offered is not None
    assert [html.unescape(value) for value in re.findall(r'<option value="([^"]+)"', offered[0])] == ALL

    @click.command()
    @requests.endpoint_option
    def command(endpoint: str) -> None:
        """A command with the option."""

    (option,) = command.params
    assert isinstance(option.type, click.Choice) and list(option.type.choices) == ALL


def test_the_page_of_models_shows_them(visitor: FlaskClient) -> None:
    page = html.unescape(visitor.get("/models").text)
    assert all(path in page for path in ALL)
