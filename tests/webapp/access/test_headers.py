"""A proxy of the settings names the user in headers; anyone else who sends these is refused."""

from __future__ import annotations

import hashlib
import hmac
import socket
import threading
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.serving import make_server

from store import keys, sessions
from tasks.context import AppContext
from tests.support.webapps import context_in, upload
from tests.webapp.access.conftest import Lines
from tests.webapp.pages.conftest import csrf_of, signed_in
from webapp import create_app

PROXY, STRANGER = "10.1.2.3", "192.0.2.9"


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"identity_proxies": "10.1.0.0/16, 127.0.0.1"}


def headers(groups: str = "ml", user: str = "u-7", email: str = "ada@example.com") -> dict[str, str]:
    return {"X-Forwarded-User": user, "X-Forwarded-Email": email, "X-Forwarded-Groups": groups}


def through(client: FlaskClient, address: str = PROXY, **named: str) -> FlaskClient:
    """Return the client, from now on behind a peer at this address that names a user."""
    client.environ_base["REMOTE_ADDR"] = address
    for name, value in headers(**named).items():
        client.environ_base["HTTP_" + name.upper().replace("-", "_")] = value
    return client


def files_of(client: FlaskClient) -> str:
    page = client.get("/files")
    assert page.status_code == 200, page.text
    return page.text


def a_file(context: AppContext, project: str, name: str) -> str:
    """Upload a file to a project with a key of it. Return its id."""
    with context.database.write() as session:
        key = keys.create(session, project).key
    client = create_app(context).test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {key}"
    file_id: str = upload(client, b'{"custom_id": "a"}\n', name).get_json()["id"]
    return file_id


def test_a_trusted_proxy_signs_in_whom_it_names_to_the_project_of_the_group(
    stranger: FlaskClient, context: AppContext, audit_lines: Lines
) -> None:
    theirs, others = a_file(context, "search", "ours.jsonl"), a_file(context, "ads", "secret.jsonl")
    client = through(stranger)
    page = files_of(client)
    assert "<bdi>search</bdi></span>" in page and "ours.jsonl" in page and "secret.jsonl" not in page
    assert client.get(f"/files/{theirs}/content").status_code == 200
    assert client.get(f"/files/{others}/content").status_code == 404
    assert client.get("/keys").status_code == 403, "no administrator"
    assert client.post(f"/files/{theirs}/delete", data={"csrf": csrf_of(client)}).status_code == 303
    with context.database.read() as session:
        records, _ = keys.page(session, project="search")
    user = next(record for record in records if record.id.startswith(sessions.USER))
    assert (user.label, user.admin) == ("ada@example.com", False)
    done = [
        (line["action"], line["key"], line["name"], line["object"], line["result"])
        for line in audit_lines()
        if line["name"] == "ada@example.com"
    ]
    assert done == [
        ("sign_in.header", user.id, user.label, None, "ok"),
        ("pages.files.content", user.id, user.label, theirs, "ok"),
        ("pages.files.content", user.id, user.label, others, "failed"),
        ("pages.keys.show", user.id, user.label, None, "refused"),
        ("pages.files.delete", user.id, user.label, theirs, "ok"),
    ]


@pytest.mark.parametrize("address", [STRANGER, "", "10.10.2.3", "::1"])
def test_the_headers_of_anyone_else_are_refused(stranger: FlaskClient, address: str, audit_lines: Lines) -> None:
    client = through(stranger, address, groups="ops")
    for claimed in ({}, {"X-Forwarded-For": PROXY}, {"X-Real-IP": PROXY}, {"Forwarded": f"for={PROXY}"}):
        answer = client.get("/keys", headers=claimed)
        assert (answer.status_code, "Set-Cookie" in answer.headers) == (403, False)
        assert f"it comes from {address!r}".replace("'", "&#39;") in answer.text
        assert client.post("/webhooks", data={"url": "https://x.example"}, headers=claimed).status_code == 403
    assert {(line["action"], line["key"], line["result"]) for line in audit_lines()} == {
        ("sign_in.header", None, "refused"),
        ("pages.keys.show", None, "refused"),
        ("pages.webhooks.create", None, "refused"),
    }


def test_a_proxy_that_appends_to_a_clients_header_names_nobody(stranger: FlaskClient) -> None:
    client = through(stranger, user="root,u-7")
    answer = client.get("/")
    assert (answer.status_code, "Set-Cookie" in answer.headers) == (403, False)
    assert "does not name one user" in answer.text


def test_without_the_setting_headers_mean_nothing(context: AppContext, tmp_path: Any) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    plain = context_in(folder, redis_url="redis://127.0.0.1:1/0", group_projects="*=search", admin_groups="ops")
    answer = through(create_app(plain).test_client(), "127.0.0.1", groups="ops").get("/")
    assert (answer.status_code, answer.location) == (303, "/sign-in?next=/")


def test_headers_are_no_key_of_the_api(stranger: FlaskClient) -> None:
    client = through(stranger, groups="ops")
    assert client.get("/").status_code == 200
    for path in ("/v1/files", "/v1/keys", "/v1/batches"):
        assert client.get(path).status_code == 401


def test_behind_the_gateway_its_own_peer_counts_and_not_what_a_client_says(
    context: AppContext, tmp_path: Any, settings: dict[str, Any]
) -> None:
    folder = tmp_path / "behind"
    folder.mkdir()
    values = {"proxies": 2, "behind_gateway": True, "group_projects": "ml=search", **settings}
    behind = context_in(folder, redis_url="redis://127.0.0.1:1/0", **values)
    client = through(create_app(behind).test_client(), "")  # the gateway connects by a Unix socket
    for known, status in ((f"8.8.8.8, {PROXY}", 200), (f"{PROXY}, {STRANGER}", 403), (PROXY + ",", 403), ("", 403)):
        assert client.get("/", headers={"X-Forwarded-For": known}).status_code == status, known


def test_behind_other_proxies_the_last_one_counts_and_not_the_client_that_it_names(
    tmp_path: Any, settings: dict[str, Any]
) -> None:
    values = {"proxies": 1, "group_projects": "ml=search", **settings}
    app = create_app(context_in(tmp_path, redis_url="redis://127.0.0.1:1/0", **values))
    for address, client, status in ((STRANGER, PROXY, 403), (PROXY, STRANGER, 200)):
        browser = through(app.test_client(), address)
        assert browser.get("/", headers={"X-Forwarded-For": client}).status_code == status


def test_groups_choose_the_projects_and_a_lost_group_closes_them(stranger: FlaskClient, context: AppContext) -> None:
    client = through(stranger, groups="cn=ads team, ml ,unknown")
    assert "<bdi>search</bdi></span>" in files_of(client), "the first of the setting"
    assert 'href="/sign-in/project"' in files_of(client)
    for project in ("ads", "default"):  # the second is none of theirs
        data = {"csrf": csrf_of(client), "project": project}
        assert client.post("/sign-in/project", data=data).status_code == 303
        assert (f"<bdi>{project}</bdi></span>" in files_of(client)) == (project == "ads")
    refused = through(client, groups="unknown").get("/")
    assert refused.status_code == 403 and "none of your groups opens a project" in refused.text
    administrator = through(client, groups="ops", user="u-8")
    assert administrator.get("/keys").status_code == 200
    assert through(client, groups="ml", user="u-8").get("/keys").status_code == 403, "admin is what the groups say now"


def test_whom_an_administrator_has_revoked_stays_out(stranger: FlaskClient, context: AppContext) -> None:
    client = through(stranger)
    files_of(client)
    with context.database.write() as session:
        record = next(key for key in keys.page(session)[0] if key.id.startswith(sessions.USER))
        keys.revoke(session, record.id)
        assert keys.authenticate(session, f"by-{record.id}-") is None, "no secret opens it"
    answer = client.get("/files")
    assert answer.status_code == 403 and "has revoked your access" in answer.text


def test_a_form_needs_the_browsers_own_token_and_a_session_of_somebody_else_does_not_count(
    stranger: FlaskClient, context: AppContext
) -> None:
    with context.database.write() as session:
        key = keys.create(session, "ads", admin=True).key
    client = through(signed_in(stranger, key))
    assert "<bdi>search</bdi></span>" in files_of(client), "whom the proxy names, not whose session was left here"
    forged = through(create_app(context).test_client())
    empty = hmac.new(b"", b"csrf", hashlib.sha256).hexdigest()
    for token in ("", empty, csrf_of(client)):
        assert forged.post("/sign-out", data={"csrf": token}).status_code == 403
        forged.delete_cookie("batchyard_session")


def test_over_a_real_connection_the_address_is_that_of_the_socket(context: AppContext) -> None:
    server = make_server("127.0.0.1", 0, create_app(context), threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers().items())

    def status(source: str) -> int:
        with socket.create_connection(server.server_address, timeout=60, source_address=(source, 0)) as connection:
            connection.sendall(f"GET /files HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{lines}\r\n".encode())
            return int(connection.makefile("rb").readline().split()[1])

    try:
        assert (status("127.0.0.1"), status("127.0.0.2")) == (200, 403)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
