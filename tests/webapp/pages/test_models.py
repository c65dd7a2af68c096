"""/models: the models served, with their measurements."""

from __future__ import annotations

import re

import pytest
from flask.testing import FlaskClient

from store import keys, speeds
from store.speeds import Measurement
from tasks.context import AppContext
from tasks.execution import engine_status
from tasks.execution.engine_status import EngineState
from tests.webapp.pages.conftest import signed_in
from webapp import create_app
from webapp.pages.formats import NOTHING


def test_a_model_that_was_not_measured_says_so(client: FlaskClient) -> None:
    page = client.get("/models").text
    assert "Not measured yet." in page
    assert "simulated" in page
    assert "Engines are not known: Redis is away." in page


def test_the_measured_speed_is_shown_and_only_that_of_this_configuration(
    client: FlaskClient, context: AppContext
) -> None:
    measured = Measurement(seconds=10.0, requests=40, bytes=4000.0, tokens=2000)
    with context.database.write() as session:
        speeds.measure(session, "echo", context.models["echo"].config_sha256, "decode", measured)
        speeds.measure(session, "echo", "0" * 64, "prefill", measured)
    page = client.get("/models").text
    row = re.sub(r"<[^>]+>|\s+", " ", page.partition("<tbody>")[2].partition("</tbody>")[0]).split()
    assert row == ["answers", "4.0", "200", NOTHING, NOTHING]


def test_only_an_administrator_sees_engines_by_name(
    client: FlaskClient, context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = EngineState("engine:echo:0", "echo", "idle", 7, 0, 1.0, 1.0)
    monkeypatch.setattr("tasks.metrics._messages", lambda _context: {})
    monkeypatch.setattr("tasks.execution.progress.totals", lambda _context: {})
    monkeypatch.setattr(engine_status, "read", lambda _context: [state])
    with context.database.write() as session:
        plain = keys.create(session, "plain").key
    theirs = signed_in(create_app(context).test_client(), plain).get("/models").text
    ours = client.get("/models").text
    assert ("engine:echo:0" in ours, "engine:echo:0" in theirs) == (True, False)
    assert '<span class="state idle">idle</span>' in theirs
