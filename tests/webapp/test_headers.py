"""Every response tells browsers and proxies what they may do with it."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient

from store import keys
from tasks.context import AppContext
from tests.support.messages import SentMessages
from tests.webapp.pages.conftest import signed_in
from webapp import create_app


def clients_of(context: AppContext) -> dict[str, FlaskClient]:
    """Clients of one app: nobody, one with an admin key, and one that has signed in with it."""
    with context.database.write() as session:
        key = keys.create(session, "default", admin=True).key
    app = create_app(context)
    with_key = app.test_client()
    with_key.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {key}"
    return {"nobody": app.test_client(), "key": with_key, "session": signed_in(app.test_client(), key)}


@pytest.mark.parametrize("who", ["nobody", "key", "session"])
def test_every_route_says_what_browsers_may_do_with_its_answer(
    context: AppContext, sent: SentMessages, who: str
) -> None:
    client = clients_of(context)[who]
    paths = {"filename": "pages.css", "line": 1, "number": 1, "position": 1}
    statuses = set()
    with client.application.test_request_context():
        calls = [
            (method, rule.build({name: paths.get(name, "swagger_bundle.js") for name in rule.arguments})[1], rule)
            for rule in client.application.url_map.iter_rules()
            for method in sorted((rule.methods or set()) - {"HEAD"})
            if rule.endpoint != "pages.sessions.sign_out"
        ]
    for method, path, rule in calls:
        answer = client.open(path, method=method)
        statuses.add(answer.status_code)
        place, said = f"{method} {path}: {answer.status_code}", answer.headers
        policy = said["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'") and "frame-ancestors 'none'" in policy, place
        assert "unsafe" not in policy, place
        assert said["X-Content-Type-Options"] == "nosniff", place
        assert said["Referrer-Policy"] in ("same-origin", "no-referrer"), place
        kept = rule.endpoint in ("static", "document.docs_file") and answer.status_code == 200 and method == "GET"
        assert kept or said["Cache-Control"] == "no-store", place
    assert 500 not in statuses and len(statuses) > 2
