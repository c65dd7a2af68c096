"""Signing in to the pages, and the rights of a session."""

from __future__ import annotations

import dataclasses
import time

import pytest
from flask.testing import FlaskClient
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from sqlalchemy import select

from store import keys, sessions
from store.records import WebSession
from tasks.context import AppContext
from tests.webapp.pages.conftest import csrf_of, signed_in
from webapp import create_app


def new_key(context: AppContext, project: str = "default") -> keys.NewKey:
    with context.database.write() as session:
        return keys.create(session, project)


def test_a_page_asks_to_sign_in_and_goes_on_to_itself(client: FlaskClient, context: AppContext) -> None:
    stranger = create_app(context).test_client()
    answer = stranger.get("/batches/batch_1?x=1")
    assert (answer.status_code, answer.location) == (303, "/sign-in?next=/batches/batch_1?x%3D1")
    page = stranger.get(answer.location).text
    assert 'name="next" value="/batches/batch_1?x=1"' in page
    assert 'type="password" autocomplete="off"' in page
    answer = stranger.post("/sign-in", data={"key": new_key(context).key, "next": "/batches/batch_1?x=1"})
    assert (answer.status_code, answer.location) == (303, "/batches/batch_1?x=1")


@pytest.mark.parametrize(
    "elsewhere",
    [
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "/\t/evil.example",
        "javascript:alert(1)",
        "\\\\e",
        "",
    ],
)
def test_signing_in_leads_nowhere_else(client: FlaskClient, context: AppContext, elsewhere: str) -> None:
    answer = client.post("/sign-in", data={"key": new_key(context).key, "next": elsewhere})
    assert (answer.status_code, answer.location) == (303, "/")


def test_a_wrong_key_is_told_of_and_makes_no_session(context: AppContext) -> None:
    stranger = create_app(context).test_client()
    key = new_key(context).key
    for wrong in ("", "nonsense", key[:-1] + ("0" if key[-1] != "0" else "1")):
        answer = stranger.post("/sign-in", data={"key": wrong})
        assert (answer.status_code, "Set-Cookie" in answer.headers) == (401, False)
        assert "No key like this is in use" in answer.text
        assert wrong == "" or wrong not in answer.text


def test_the_cookie_is_not_for_scripts_nor_other_sites_and_only_a_hash_is_kept(context: AppContext) -> None:
    stranger, key = create_app(context).test_client(), new_key(context).key
    plain = stranger.post("/sign-in", data={"key": key}).headers["Set-Cookie"]
    assert "HttpOnly" in plain and "SameSite=Lax" in plain and "Path=/" in plain and "Secure" not in plain
    assert "Secure" in stranger.post("/sign-in", data={"key": key}, base_url="https://localhost").headers["Set-Cookie"]
    token = plain.partition("=")[2].partition(";")[0]
    with context.database.read() as session:
        kept = session.scalars(select(WebSession)).all()
    assert len(kept) == 2
    assert not any(token in value for record in kept for value in map(str, vars(record).values()))


def behind_a_proxy(context: AppContext, proxies: int) -> FlaskClient:
    settings = context.settings.model_copy(update={"proxies": proxies})
    app = create_app(dataclasses.replace(context, settings=settings))
    app.extensions["limiter"] = MovingWindowRateLimiter(MemoryStorage())
    return app.test_client()


def test_behind_a_proxy_wrong_keys_count_for_their_own_client_only(context: AppContext) -> None:
    stranger = behind_a_proxy(context, 1)

    def statuses(address: str, times: int) -> set[int]:
        headers = {"X-Forwarded-For": f"9.9.9.9, {address}"}  # only the last entry is the proxy's own
        return {stranger.post("/sign-in", data={"key": "x"}, headers=headers).status_code for _ in range(times)}

    assert statuses("1.1.1.1", 10) == {401}
    assert statuses("1.1.1.1", 1) == {429}
    assert statuses("2.2.2.2", 1) == {401}


@pytest.mark.parametrize(("proxies", "secure"), [(0, False), (1, True)])
def test_the_cookie_is_secure_if_a_trusted_proxy_has_tls(context: AppContext, proxies: int, secure: bool) -> None:
    stranger, key = behind_a_proxy(context, proxies), new_key(context).key
    answer = stranger.post("/sign-in", data={"key": key}, headers={"X-Forwarded-Proto": "https"})
    assert ("Secure" in answer.headers["Set-Cookie"]) == secure


def test_a_session_ends_with_its_key_with_time_and_by_signing_out(
    client: FlaskClient, context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = new_key(context)
    theirs = signed_in(create_app(context).test_client(), key.key)
    assert theirs.get("/").status_code == 200
    with context.database.write() as session:
        keys.revoke(session, key.id)
    assert theirs.get("/").status_code == 303

    cookie = client.get_cookie("batchyard_session")
    assert client.post("/sign-out", data={"csrf": csrf_of(client)}).location == "/sign-in"
    assert client.get("/").status_code == 303
    assert cookie is not None
    client.set_cookie(cookie.key, cookie.value)  # a signed-out session stays ended, even if the browser keeps its token
    assert client.get("/").status_code == 303

    third = signed_in(create_app(context).test_client(), new_key(context).key)
    later = int(time.time()) + sessions.SECONDS
    monkeypatch.setattr(sessions, "now", lambda: later)
    assert third.get("/").status_code == 303


def test_a_session_does_not_authorise_the_api(client: FlaskClient) -> None:
    for path in ("/v1/batches", "/v1/files", "/v1/keys", "/v1/queue", "/v1/models"):
        answer = client.get(path)
        assert (answer.status_code, answer.get_json()["error"]["code"]) == (401, "invalid_api_key")
    assert client.post("/v1/batches", json={}).status_code == 401
    assert client.post("/start", json={"prompts": ["x"]}).status_code == 401


def test_a_post_needs_the_token_of_its_own_session(client: FlaskClient, context: AppContext) -> None:
    other = signed_in(create_app(context).test_client(), new_key(context).key)
    for token in ({}, {"csrf": ""}, {"csrf": "0" * 64}, {"csrf": "ä"}, {"csrf": csrf_of(other)}):
        answer = client.post("/sign-out", data=token)
        assert answer.status_code == 403
        assert "This form belongs to another session" in answer.text
    assert client.get("/").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_a_post_from_another_site_is_refused(client: FlaskClient, context: AppContext, headers: dict[str, str]) -> None:
    assert client.post("/sign-out", data={"csrf": csrf_of(client)}, headers=headers).status_code == 403
    assert client.post("/sign-in", data={"key": new_key(context).key}, headers=headers).status_code == 403
    same = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
    assert client.post("/sign-out", data={"csrf": csrf_of(client)}, headers=same).status_code == 303


def test_pages_say_what_a_browser_may_do_and_are_not_kept(client: FlaskClient, context: AppContext) -> None:
    stranger = create_app(context).test_client()
    html = {"Accept": "text/html"}
    for answer in (client.get("/"), stranger.get("/sign-in"), client.get("/nope", headers=html)):
        policy = answer.headers["Content-Security-Policy"].split("; ")
        assert {"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"} <= set(policy)
        assert not any("unsafe" in directive for directive in policy)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "same-origin"
        assert answer.headers["Cache-Control"] == "no-store"
        assert " style=" not in answer.text and "<style" not in answer.text and " on" + "click" not in answer.text


def test_static_files_are_kept_by_browsers_under_their_version(client: FlaskClient) -> None:
    page = client.get("/").text
    path = page.partition('rel="stylesheet" href="')[2].partition('"')[0]
    assert "?v=" in path
    answer = client.get(path)
    assert (answer.status_code, answer.headers["Cache-Control"]) == (200, "public, max-age=31536000, immutable")


def test_errors_are_pages_for_people_and_json_for_clients(client: FlaskClient) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for path in ("/nope", "/batches/batch_1", "/files/", "/docs/nope", "/static/nope.css", "/jobs/job_1/nope/nope"):
        answer = client.get(path, headers=browser)
        assert (answer.status_code, answer.mimetype) == (404, "text/html"), path
        assert 'aria-label="Pages"' in answer.text and "Not found" in answer.text, path
    for path, headers in (("/nope", {}), ("/v1/nope", browser), ("/v1/batches/batch_1", browser)):
        answer = client.get(path, headers=headers)
        assert answer.mimetype == "application/json", path
        assert set(answer.get_json()["error"]) == {"message", "type", "param", "code"}


def test_a_part_of_a_page_whose_session_has_ended_reloads_the_page(context: AppContext) -> None:
    answer = create_app(context).test_client().get("/", headers={"HX-Request": "true"})
    assert (answer.status_code, answer.headers["HX-Refresh"]) == (401, "true")


def test_who_sends_many_wrong_keys_has_to_wait_and_a_right_key_never_does(context: AppContext) -> None:
    app = create_app(context)
    app.extensions["limiter"] = MovingWindowRateLimiter(MemoryStorage())
    stranger, key = app.test_client(), new_key(context).key
    assert {stranger.post("/sign-in", data={"key": "wrong"}).status_code for _ in range(10)} == {401}
    for _ in range(2):
        answer = stranger.post("/sign-in", data={"key": "wrong"})
        assert (answer.status_code, "Retry-After" in answer.headers) == (429, True)
        assert app.test_client().post("/sign-in", data={"key": key}).status_code == 303, "from the same address"
    elsewhere = stranger.post("/sign-in", data={"key": "wrong"}, environ_overrides={"REMOTE_ADDR": "192.0.2.7"})
    assert elsewhere.status_code == 401
