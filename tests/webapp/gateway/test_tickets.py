"""The page to try a prompt: the web app checks its session and form, the gateway answers in the name of its key."""

from __future__ import annotations

import functools
import json
import re
import threading
from collections.abc import Callable, Iterator

import httpx
import pytest
from sqlalchemy import select, update
from werkzeug.serving import make_server

from store import keys
from store.database import Database
from store.records import ApiKey, DailyUsage, Project
from tasks.context import AppContext
from tests.support.gateways import LiveEngine, LoopThread, RunningGateway
from tests.support.rows import until
from tests.support.webapps import on_sqlite
from webapp import create_app
from webapp.gateway import tickets
from webapp.pages import POLICY

EVENTS = {"Accept": "text/event-stream"}
pytestmark = on_sqlite


@pytest.fixture
def site(live_context: AppContext, thread: LoopThread, engines: dict[str, LiveEngine]) -> Iterator[RunningGateway]:
    """The gateway before the real web app."""
    server = make_server("127.0.0.1", 0, create_app(live_context), threaded=True)
    serving = threading.Thread(target=server.serve_forever, args=(0.05,))
    serving.start()
    running = RunningGateway(thread, live_context, f"http://127.0.0.1:{server.server_port}")
    yield running
    running.stop()
    server.shutdown()
    serving.join()


@pytest.fixture
def browser(site: RunningGateway, key: str) -> Iterator[httpx.Client]:
    """Somebody who has signed in."""
    with httpx.Client(base_url=site.url, headers={"Accept": "text/html"}, timeout=60) as client:
        assert client.post("/sign-in", data={"key": key}).status_code == 303
        yield client


@pytest.fixture
def ask(browser: httpx.Client) -> Callable[..., httpx.Response]:
    """Sends the form of a model's page, with these fields."""

    def ask(model: str = "echo", headers: dict[str, str] | None = None, **fields: str) -> httpx.Response:
        page = browser.get(f"/models/{model}/try")
        match = re.search(r'name="csrf" value="([0-9a-f]{64})"', page.text)
        assert match is not None, page.text
        blank = dict.fromkeys(("system", "temperature", "max_tokens", "top_p", "seed"), "")
        form = blank | {"csrf": match[1], "prompt": "three <b>wagons</b>"} | fields
        return browser.post(f"/models/{model}/try", data=form, headers=headers)

    return ask


Ask = Callable[..., httpx.Response]


def test_a_form_without_scripts_is_answered_by_the_whole_page(ask: Ask) -> None:
    response = ask(max_tokens="2")
    assert response.status_code == 200 and response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["content-security-policy"] == POLICY and response.headers["cache-control"] == "no-store"
    answer = response.text.partition('<div id="answer">')[2].partition("</div>")[0]
    assert ">three &lt;b&gt;wagons&lt;/b&gt;</pre>" in answer, "a text, and nothing that a browser would run"
    assert re.search(r"2 tokens in [\d.]+ m?s, [\d.]+ tokens a second", answer)
    assert "three &lt;b&gt;wagons&lt;/b&gt;</textarea>" in response.text, "what was typed stays"
    assert response.text.rstrip().endswith("</html>")


def test_a_script_gets_the_stream_of_the_answer(ask: Ask) -> None:
    response = ask(headers=EVENTS, system="be brief")
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    pieces = [choice["delta"].get("content", "") for event in events for choice in event["choices"]]
    assert "".join(pieces) == "three <b>wagons</b>"
    assert events[-1]["usage"]["completion_tokens"] == 2
    assert response.text.endswith("data: [DONE]\n\n")
    assert tickets.HEADER.lower() not in response.headers


@pytest.mark.parametrize(
    ("fields", "message", "status"),
    [
        ({"prompt": "  "}, "prompt", 400),
        ({"temperature": "hot"}, "temperature", 400),
        ({"max_tokens": "0"}, "max_tokens", 400),
    ],
)
def test_a_wrong_field_is_named_on_the_page_and_to_the_script(
    ask: Ask, fields: dict[str, str], message: str, status: int
) -> None:
    page = ask(**fields)
    assert page.status_code == status and message in page.text and "</html>" in page.text
    response = ask(headers=EVENTS, **fields)
    assert response.status_code == status and message in response.json()["error"]["message"]


def test_without_a_session_or_with_another_ones_form_nothing_reaches_an_engine(
    browser: httpx.Client, ask: Ask, engines: dict[str, LiveEngine], site: RunningGateway
) -> None:
    assert ask(csrf="0" * 64).status_code == 403
    assert ask(headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    post = functools.partial(httpx.post, timeout=60)
    away = post(f"{site.url}/models/echo/try", data={"prompt": "x"}, headers={"Accept": "text/html"})
    assert away.status_code == 303 and away.headers["location"].startswith("/sign-in")
    session = dict(browser.cookies)
    body = {"model": "echo", "messages": [{"role": "user", "content": "x"}]}
    assert post(f"{site.url}/v1/chat/completions", json=body, cookies=session).status_code == 401
    forged = post(f"{site.url}/v1/chat/completions", json=body, headers={tickets.HEADER: "1"})
    assert forged.status_code == 401
    assert engines["echo"].answered == 0


def test_the_usage_is_that_of_the_sessions_key(ask: Ask, site: RunningGateway, database: Database) -> None:
    assert ask(model="priced").status_code == 200
    site.stop()  # it writes what there is
    with database.read() as session:
        (used,) = session.scalars(select(DailyUsage)).all()
        assert used.key_id == session.scalars(select(ApiKey.id)).one()
        assert (used.model, used.requests, used.output_tokens) == ("priced", 1, 2)


def test_the_projects_tier_and_the_keys_end_hold_here_too(ask: Ask, database: Database, browser: httpx.Client) -> None:
    assert ask().status_code == 200
    with database.write() as session:
        session.execute(update(Project).values(live_tier="none"))
    until(lambda: ask().status_code != 200)
    page = ask()
    assert page.status_code == 400 and "it may send batches only" in page.text
    with database.write() as session:
        keys.revoke(session, session.scalars(select(ApiKey.id)).one())
    assert browser.post("/models/echo/try", data={"prompt": "x"}).status_code == 303, "to sign in"


def test_a_model_that_answers_no_prompt_has_no_page(browser: httpx.Client) -> None:
    for model in ("offline", "unknown"):
        assert browser.get(f"/models/{model}/try").status_code == 404
    page = browser.get("/models").text
    assert 'href="/models/echo/try"' in page and "/models/offline/try" not in page
    assert 'href="/models/echo/try"' in browser.get("/begin").text
