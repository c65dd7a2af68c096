"""Administrators say how long a project keeps what it has, and erase it; nobody else does."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient

from tasks.context import AppContext
from tests.support.webapps import client_of, project_of


@pytest.fixture
def admin(context: AppContext) -> FlaskClient:
    return client_of(context, admin=True, project="operators")


def test_a_project_keeps_nothing_for_long_if_an_administrator_says_so(
    context: AppContext, client: FlaskClient, admin: FlaskClient
) -> None:
    url = f"/v1/projects/{project_of(context)}"
    assert client.post(url, json={"zero_retention_minutes": 5}).status_code == 403
    assert admin.post(url, json={"cache_bytes": 1000}).get_json()["cache_bytes"] == 1000
    changed = admin.post(url, json={"zero_retention_minutes": 5}).get_json()
    assert (changed["zero_retention_minutes"], changed["cache_bytes"]) == (5, None)
    for body in ({"zero_retention_minutes": 0}, {"cache_bytes": 1000}):
        answer = admin.post(url, json=body)
        assert (answer.status_code, answer.get_json()["error"]["param"]) == (400, next(iter(body)))
    assert admin.post(url, json={"zero_retention_minutes": None}).get_json()["zero_retention_minutes"] is None


def test_an_administrator_of_another_project_erases_a_project_whose_keys_end_at_once(
    context: AppContext, client: FlaskClient, admin: FlaskClient
) -> None:
    url = f"/v1/projects/{project_of(context)}"
    assert client.delete(url).status_code == 403
    own = admin.delete(f"/v1/projects/{project_of(context, 'operators')}")
    assert (own.status_code, own.get_json()["error"]["code"]) == (409, "own_project")
    assert admin.delete("/v1/projects/proj_none").status_code == 404
    assert client.get("/v1/files").status_code == 200
    first = admin.delete(url).get_json()
    assert first["erasing_at"] is not None
    assert client.get("/v1/files").status_code == 401
    assert admin.delete(url).get_json() == first
    refused = admin.post("/v1/keys", json={"project": "default"})
    assert (refused.status_code, refused.get_json()["error"]["code"]) == (409, "project_erased")
