"""Signing in by OpenID Connect, at a real provider on loopback."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import html
import json
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from flask.testing import FlaskClient
from itsdangerous import TimestampSigner
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey
from werkzeug.serving import make_server
from werkzeug.utils import redirect
from werkzeug.wrappers import Request, Response

from batchyard import plugins
from batchyard.errors import ConfigurationError
from batchyard.settings import load
from store import sessions
from tasks.context import AppContext
from tests.webapp.access.conftest import Lines
from tests.webapp.pages.conftest import csrf_of
from webapp import create_app
from webapp.access import oidc

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the provider uses a module that Authlib renames
    import oidc_provider_mock
    from authlib import jose

pytestmark = pytest.mark.filterwarnings("ignore:get_jwt_config")  # of the provider, too
SECRET = "not-to-be-logged-9c1f"
ADA = {"email": "ada@example.com", "groups": ["ml"]}


@pytest.fixture(scope="module")
def provider_key() -> dict[str, Any]:
    """The provider's private key."""
    return dict(RSAKey.generate_key(2048).as_dict(private=True))


@pytest.fixture(scope="module")
def provider(provider_key: dict[str, Any]) -> Iterator[str]:
    """The URL of an OpenID provider that knows two users."""
    people = [
        oidc_provider_mock.User(sub="ada", claims=ADA),
        oidc_provider_mock.User(sub="eve", claims={"email": "eve@example.com", "groups": ["cn=ads team", "ml"]}),
        oidc_provider_mock.User(sub="max", claims={"email": "max@example.com"}),
        oidc_provider_mock.User(sub="ops", claims={"email": "ops@example.com", "groups": "ops"}),
    ]
    with (
        pytest.MonkeyPatch.context() as patch,
        mock.patch.object(jose.RSAKey, "generate_key", lambda **_: jose.RSAKey.import_key(provider_key)),
        oidc_provider_mock.run_server_in_thread(user_claims=people, require_nonce=True) as server,
    ):
        patch.setenv("AUTHLIB_INSECURE_TRANSPORT", "1")
        patch.setattr(oidc, "SECONDS", 60.0)
        yield f"http://localhost:{server.server_port}"


@pytest.fixture
def settings(provider: str, tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "secret").write_text(SECRET + "\n")
    return {
        "oidc_issuer": provider,
        "oidc_client_id": "batchyard",
        "oidc_client_secret_file": str(tmp_path / "secret"),
    }


def begun(client: FlaskClient, path: str = "/sign-in/oidc?next=/files") -> str:
    """Begin a sign-in. Return the provider's address that the browser is sent to."""
    answer = client.get(path)
    assert answer.status_code == 302
    return str(answer.location)


def callback(at: str, user: str) -> str:
    """Sign in at the provider, as a person does in its form. Return the path that it sends the browser back to."""
    answer = httpx.post(at, data={"sub": user}, timeout=60)
    assert answer.status_code == 302, answer.text
    back = urlsplit(answer.headers["Location"])
    assert (back.netloc, back.path) == ("localhost", "/sign-in/oidc/callback")
    return f"{back.path}?{back.query}"


def test_the_whole_flow_opens_a_session_of_the_groups_project(
    stranger: FlaskClient, audit_lines: Lines, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("DEBUG")
    assert 'href="/sign-in/oidc?next=/files"' in stranger.get("/sign-in?next=/files").text
    address = begun(stranger)
    sent = parse_qs(urlsplit(address).query)
    assert (sent["response_type"], sent["client_id"]) == (["code"], ["batchyard"])
    assert all(len(sent[name][0]) >= 20 for name in ("state", "nonce", "code_challenge"))
    back = callback(address, "ada")
    with mock.patch.object(oidc._Session, "fetch_token", autospec=True, side_effect=oidc._Session.fetch_token) as fetch:
        answer = stranger.get(back)
    digest = hashlib.sha256(fetch.call_args.kwargs["code_verifier"].encode()).digest()
    challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    assert (sent["code_challenge_method"], sent["code_challenge"]) == (["S256"], [challenge])
    assert (answer.status_code, answer.location) == (303, "/files")
    cookies = {cookie.partition("=")[0]: cookie for cookie in answer.headers.getlist("Set-Cookie")}
    assert all(word in cookies["batchyard_session"] for word in ("HttpOnly", "SameSite=Lax", "Max-Age=43200"))
    page = stranger.get("/files").text
    assert "<bdi>search</bdi></span>" in page
    assert stranger.get("/keys").status_code == 403
    assert stranger.get("/v1/files").status_code == 401, "a session is no key"
    replayed = stranger.get(back)
    assert (replayed.status_code, "batchyard_session=" in str(replayed.headers)) == (401, False)

    cookie = stranger.get_cookie("batchyard_session")
    assert stranger.post("/sign-out", data={"csrf": csrf_of(stranger)}).location == "/sign-in"
    assert cookie is not None
    stranger.set_cookie(cookie.key, cookie.value)
    assert stranger.get("/files").status_code == 303, "signed out for good"

    stranger.get(callback(begun(stranger), "ada"))
    assert stranger.get("/files").status_code == 200
    over = sessions.now() + sessions.SECONDS
    with monkeypatch.context() as later:
        later.setattr(sessions, "now", lambda: over)
        assert stranger.get("/files").status_code == 303, "a session ends with its time"

    actions = [(line["action"], line["name"], line["result"]) for line in audit_lines()]
    assert actions[0] == ("sign_in.oidc", "ada@example.com", "ok")
    assert ("sign_in.oidc", None, "refused") in actions and ("sign_out", "ada@example.com", "ok") in actions
    code = parse_qs(urlsplit(back).query)["code"][0]
    libraries = ("webapp", "authlib", "requests", "urllib3", "flask")  # the test's own are httpx and the provider
    ours = "".join(str(vars(record)) for record in caplog.records if record.name.startswith(libraries))
    assert all(secret not in ours for secret in (SECRET, code, cookie.value))


def test_a_callback_that_this_browser_did_not_begin_is_refused(stranger: FlaskClient, context: AppContext) -> None:
    back = callback(begun(stranger), "ada")
    other = create_app(context).test_client()
    wrong = re.sub("state=[^&]+", "state=wrong", back)
    missing = re.sub("&?state=[^&]+", "", back)
    for client, path in ((other, back), (stranger, wrong), (stranger, missing), (stranger, back)):
        answer = client.get(path)
        assert answer.status_code == 401, "the last: a wrong state ends what was begun"
        assert "begin it again" in answer.text and "batchyard_session=" not in str(answer.headers)


def test_a_refusal_of_the_provider_is_one_here(stranger: FlaskClient) -> None:
    begun(stranger)
    answer = stranger.get("/sign-in/oidc/callback?error=access_denied&error_description=%3Cb%3E")
    assert answer.status_code == 401 and "<b>" not in answer.text


def _encoded(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def _decoded(part: str) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=="))
    return decoded


def _token(header: dict[str, Any], claims: dict[str, Any], key: dict[str, Any], change: str) -> str:
    """Return an ID token with one change. Whoever made it has the provider's own key, unless that is what changes."""
    changes: dict[str, dict[str, Any]] = {
        "nonce": {"nonce": "of another sign-in"},
        "no nonce": {"nonce": None},
        "audience": {"aud": "another client"},
        "issuer": {"iss": "https://evil.example"},
        "expired": {"exp": claims["iat"] - 3600},
        "groups": {"groups": ["ops"]},
    }
    changed = {name: value for name, value in (claims | changes.get(change, {})).items() if value is not None}
    if change == "unsigned":
        return f"{_encoded({'alg': 'none'})}.{_encoded(changed)}."
    if change == "shared secret":
        return jwt.encode({"alg": "HS256"}, changed, OctKey.import_key(SECRET))
    signer = RSAKey.generate_key(2048) if change == "key" else RSAKey.import_key(key)
    token = jwt.encode(header, changed, signer)
    if change == "groups":  # after it was signed
        return ".".join((token.split(".")[0], _encoded(changed | {"groups": ["ml", "ops"]}), token.split(".")[2]))
    return token


@pytest.mark.parametrize(
    "change", ["", "nonce", "no nonce", "audience", "issuer", "expired", "groups", "key", "unsigned", "shared secret"]
)
def test_an_id_token_is_believed_only_as_the_provider_has_made_it_for_this_sign_in(
    stranger: FlaskClient, provider_key: dict[str, Any], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    back = callback(begun(stranger), "ada")
    fetch = oidc._Session.fetch_token

    def changed(client: Any, *args: Any, **options: Any) -> Any:
        token = fetch(client, *args, **options)
        header, claims, _ = token["id_token"].split(".")
        return token | {"id_token": _token(_decoded(header), _decoded(claims), provider_key, change)}

    monkeypatch.setattr(oidc._Session, "fetch_token", changed)
    answer = stranger.get(back)
    has_session = "batchyard_session=" in str(answer.headers)
    assert (answer.status_code, has_session) == ((401, False) if change else (303, True))


def test_the_cookie_of_a_sign_in_is_signed_and_lasts_ten_minutes(
    stranger: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    back = callback(begun(stranger), "ada")
    cookie = stranger.get_cookie(oidc.COOKIE)
    assert cookie is not None and cookie.http_only and cookie.same_site == "Lax" and not cookie.secure
    stranger.set_cookie(oidc.COOKIE, cookie.value[:-2] + "xx")
    assert stranger.get(back).status_code == 401
    secure = stranger.get("/sign-in/oidc", base_url="https://localhost").headers["Set-Cookie"]
    assert "Secure" in secure

    back = callback(begun(stranger), "ada")
    later = time.time() + oidc.MINUTES * 60 + 2
    with monkeypatch.context() as patch:
        patch.setattr(TimestampSigner, "get_timestamp", lambda signer: int(later))
        assert stranger.get(back).status_code == 401


def test_groups_open_projects_and_make_administrators(stranger: FlaskClient, context: AppContext) -> None:
    assert stranger.get(callback(begun(stranger), "ops")).status_code == 303
    assert stranger.get("/keys").status_code == 200, "one group may be no list"

    nobody = create_app(context).test_client()
    answer = nobody.get(callback(begun(nobody), "max"))
    assert answer.status_code == 403 and "none of your groups opens a project" in answer.text

    eve = create_app(context).test_client()
    choice = eve.get(callback(begun(eve), "eve"))
    assert choice.status_code == 200 and "batchyard_session=" not in str(choice.headers)
    links = [html.unescape(link) for link in re.findall(r'href="(/sign-in/oidc[^"]*)"', choice.text)]
    assert links == ["/sign-in/oidc?project=search&next=/files", "/sign-in/oidc?project=ads&next=/files"]
    assert eve.get(callback(begun(eve, links[1]), "eve")).location == "/files"
    assert "<bdi>ads</bdi></span>" in eve.get("/files").text
    assert 'href="/sign-in/oidc">Change' in eve.get("/files").text
    foreign = eve.get(callback(begun(eve, "/sign-in/oidc?project=default"), "eve"))
    assert foreign.status_code == 403 and "None of your groups opens project" in foreign.text


@pytest.mark.parametrize("elsewhere", ["//evil.example", "https://evil.example", "/\\evil.example"])
def test_signing_in_leads_nowhere_else(stranger: FlaskClient, elsewhere: str) -> None:
    stranger.get("/sign-in/oidc", query_string={"next": elsewhere})
    back = callback(begun(stranger, "/sign-in/oidc?" + urlencode({"next": elsewhere})), "ada")
    assert stranger.get(back).location == "/"


@contextlib.contextmanager
def discovering(answer: Callable[[str], Response]) -> Iterator[str]:
    """Run a server that answers requests for its discovery document. Yield its URL, which `answer` is called with."""
    server = make_server("localhost", 0, Request.application(lambda request: answer(request.host_url.rstrip("/"))))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://localhost:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def document(url: str, **changes: str) -> Response:
    endpoints = {"authorization_endpoint": f"{url}/a", "token_endpoint": f"{url}/t", "jwks_uri": f"{url}/j"}
    return Response(json.dumps({"issuer": url, **endpoints, **changes}), mimetype="application/json")


WRONG_PROVIDERS: dict[str, tuple[Callable[[str], Response], str]] = {
    "another issuer": (lambda url: document(url, issuer="https://evil.example"), "they must agree"),
    "a file": (lambda url: document(url, token_endpoint="file:///etc/passwd"), "names no token_endpoint"),
    "no JSON": (lambda url: Response("<html>"), "does not answer"),
    "a list": (lambda url: Response("[]", mimetype="application/json"), "does not answer"),
    "down": (lambda url: Response(status=500), "does not answer"),
}


@pytest.mark.parametrize("wrong", [*WRONG_PROVIDERS, "a redirect"])
def test_only_the_providers_own_word_counts(context: AppContext, provider: str, wrong: str) -> None:
    to_another = redirect(f"{provider}/.well-known/openid-configuration")
    answer, message = WRONG_PROVIDERS.get(wrong, (lambda url: to_another, "does not answer"))
    with discovering(answer) as url:
        changed = context.settings.model_copy(update={"oidc_issuer": url})
        page = create_app(dataclasses.replace(context, settings=changed)).test_client().get("/sign-in/oidc")
    assert page.status_code == 503 and message in page.text


def test_what_is_missing_is_said_at_the_start(
    context: AppContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def start(**changes: Any) -> None:
        create_app(dataclasses.replace(context, settings=context.settings.model_copy(update=changes)))

    with pytest.raises(ConfigurationError, match="needs BATCHYARD_OIDC_CLIENT_ID"):
        start(oidc_client_id="")
    with pytest.raises(ConfigurationError, match=r"BATCHYARD_OIDC_CLIENT_SECRET_FILE: .*/nowhere cannot be read"):
        start(oidc_client_secret_file=str(tmp_path / "nowhere"))
    monkeypatch.setattr(plugins, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigurationError, match=r"BATCHYARD_OIDC_ISSUER needs Authlib, .*: pip install 'batchyard\[oidc"
    ):
        start()


@pytest.mark.parametrize(
    "issuer", ["http://idp.example", "ftp://localhost", "idp.example", "http://localhost.evil.example"]
)
def test_a_provider_without_tls_is_refused(issuer: str) -> None:
    with pytest.raises(ConfigurationError, match=r"BATCHYARD_OIDC_ISSUER: .*must begin with https://"):
        load(oidc_issuer=issuer)
    assert SECRET not in repr(load(oidc_client_secret=SECRET))
