"""Answers to requests that match no route: what is served, and what a client has meant."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient

from tasks.context import AppContext
from webapp import create_app


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"])
def test_a_live_request_that_passes_the_gateway_by_is_sent_there(client: FlaskClient, path: str) -> None:
    answer = client.post(path, json={"model": "echo"})
    error = answer.get_json()["error"]
    assert (answer.status_code, error["code"]) == (404, "gateway_passed_by")
    assert f"send '{path}' to the gateway's address" in error["message"]
    assert "POST /v1/batches" in error["message"]
    error = client.get(path).get_json()["error"]
    assert error["message"] == f"Not allowed to GET {path}: send a POST. (method_not_allowed)"


@pytest.mark.parametrize("path", ["/v1/threads", "/v1/files/x/y/z", "/nope", "/v1/files/"])
def test_an_unknown_route_is_answered_with_what_is_served(client: FlaskClient, path: str) -> None:
    answer = client.post(path, json={})
    error = answer.get_json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (404, "invalid_request_error", "unknown_url")
    assert error["message"].startswith(f"Unknown request URL: POST {path}. This server has: /v1/")
    assert "/v1/files, /v1/imports, /v1/jobs," in error["message"] and "/start" in error["message"]
    assert "/v1/chat, " in error["message"] and "/v1/embeddings, " in error["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/chat/completions"),
        ("POST", "/responses"),
        ("POST", "/files"),
        ("POST", "/batches"),
        ("POST", "/batches/batch_1/cancel"),
        ("GET", "/models"),
        ("GET", "/models/echo"),
        ("GET", "/files"),
        ("GET", "/files/file-1/content"),
        ("GET", "/batches/batch_1"),
    ],
)
def test_a_client_whose_base_url_lacks_v1_is_told_so(context: AppContext, method: str, path: str) -> None:
    """As OpenAI's SDK sends it: with a key, and no wish for a page."""
    client = create_app(context).test_client()
    headers = {"Authorization": "Bearer sk-x", "Accept": "application/json"}
    answer = client.open(path, method=method, headers=headers)
    assert (answer.status_code, answer.get_json()["error"]["code"]) == (404, "unknown_url")
    message = f"Unknown request URL: {method} {path}. base_url must end in /v1: http://localhost/v1 (unknown_url)"
    assert answer.get_json()["error"]["message"] == message
    browser = {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}
    assert client.open(path, method=method, headers=browser).mimetype == "text/html"


def test_a_method_that_a_route_does_not_have_is_answered_with_those_it_has(client: FlaskClient) -> None:
    answer = client.put("/v1/files")
    assert (answer.status_code, set(answer.headers["Allow"].split(", "))) == (405, {"GET", "HEAD", "OPTIONS", "POST"})
    assert answer.get_json()["error"]["message"] == "Not allowed to PUT on /v1/files; allowed: GET, POST."


def test_a_browser_that_opens_the_address_of_a_forms_action_is_sent_to_its_page(client: FlaskClient) -> None:
    browser, rules = {"Accept": "text/html"}, list(client.application.url_map.iter_rules())
    shown = {rule.rule for rule in rules if "GET" in (rule.methods or ())}
    actions = {rule.rule for rule in rules} - shown
    with client.application.test_request_context():
        paths = {rule.build(dict.fromkeys(rule.arguments, "x"))[1] for rule in rules if rule.rule in actions}
    pages = {path: client.get(path, headers=browser) for path in paths if not path.startswith("/v1/")}
    assert {answer.status_code for answer in pages.values()} == {303}
    goals = {path: answer.headers["Location"] for path, answer in pages.items()}
    assert goals["/start"] == "/new" and goals["/sign-out"] == "/" and goals["/usage/budget"] == "/usage"
    assert goals["/batches/x/cancel"] == "/batches/x" and goals["/keys/x/revoke"] == "/keys"
    assert goals["/webhooks/x/deliveries/x"] == "/webhooks/x" and goals["/new/job/x/preview"] == "/new/job/x"
    assert client.get("/start").status_code == 405, "a program is told which method it has to send"
    assert client.put("/start", headers=browser).status_code == 405


def test_no_answer_has_the_frameworks_words(client: FlaskClient) -> None:
    browser = {"Accept": "text/html"}
    answers = [client.get("/nope", headers=browser), client.get("/nope"), client.delete("/v1/batches")]
    for answer in answers:
        assert "spelling" not in answer.text and "requested URL" not in answer.text


def test_a_base_url_with_v1_twice_is_told_the_right_one(client: FlaskClient) -> None:
    for path in ("/v1/v1/messages", "/v1/v1/messages/batches"):
        answer = client.post(path, json={})
        document = answer.get_json()
        assert (answer.status_code, document["type"], document["error"]["type"]) == (404, "error", "not_found_error")
        assert "its base URL is http://localhost, without /v1" in document["error"]["message"]
    models = client.get("/v1/v1/models").get_json()
    assert "its base URL is http://localhost/v1." in models["error"]["message"]


def test_health_and_version_stand_where_clients_of_vllm_look(client: FlaskClient) -> None:
    assert client.get("/health").status_code == 200
    assert client.get("/version").get_json().keys() == {"version"}


def test_an_unknown_route_is_answered_with_live_endpoints_too(client: FlaskClient) -> None:
    message = client.get("/v1/nope").get_json()["error"]["message"]
    assert "/v1/chat," in message and "/v1/embeddings," in message
