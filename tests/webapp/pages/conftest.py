"""A browser on the pages of a running stack, and a signed-in client of the web app alone."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from flask.testing import FlaskClient
from playwright.sync_api import Browser, Page, expect, sync_playwright
from werkzeug.serving import make_server

from store import keys
from tasks.context import AppContext
from tests.support.stacks import RunningStack
from webapp import create_app

SECONDS = 180
expect.set_options(timeout=SECONDS * 1000)
ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


# Not of session scope: an open Playwright blocks any other event loop in this process. No test of this folder has one.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("no chromium here; on Debian: apt install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS, timeout=SECONDS * 1000)
        yield browser
        browser.close()


class Visit:
    """A browser window on a stack. Every error and warning of the browser is a problem."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self.context = browser.new_context(base_url=url, **options)
        self.context.set_default_timeout(SECONDS * 1000)
        self.page: Page = self.context.new_page()
        self.problems: list[str] = []
        self.page.on("console", lambda entry: self._note(entry.text) if entry.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self._note(str(error)))
        self.page.on("dialog", lambda dialog: (self._note(f"dialog: {dialog.message}"), dialog.dismiss()))

    def _note(self, problem: str) -> None:
        self.problems.append(f"{self.page.url}: {problem}")

    def sign_in(self, key: str, path: str = "/") -> Page:
        """Open a page, and sign in on the way to it."""
        self.page.goto(path)
        self.page.get_by_label("API key").fill(key)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.get_by_role("button", name="Sign out").wait_for()
        return self.page

    def leave(self, path: str) -> None:
        """Open another page once the open one, of a batch or a job that ends, reloads itself no more."""
        expect(self.page.locator("[data-live]")).to_have_count(0)
        self.page.goto(path)

    def check_accessibility(self) -> None:
        """Assert that axe reports no serious or critical violation on the open page."""
        violations = Axe().run(self.page, options={"resultTypes": ["violations"]}).response["violations"]
        grave = [entry for entry in violations if entry["impact"] in ("serious", "critical")]
        summaries = [(entry["id"], [node["html"][:200] for node in entry["nodes"][:3]]) for entry in grave]
        assert summaries == [], f"{self.page.url}: {summaries}"

    def check_phone_in_the_dark(self) -> None:
        """Assert that the open page fits a phone, and is accessible there in the dark."""
        self.page.set_viewport_size({"width": 390, "height": 800})
        self.page.emulate_media(color_scheme="dark")
        assert self.page.evaluate("document.documentElement.scrollWidth") <= 390, self.page.url
        self.check_accessibility()


@contextmanager
def _windows(browser: Browser, url: str) -> Iterator[Callable[..., Visit]]:
    """Give a function that opens a new browser window to the block. None may have problems at its end."""
    visits: list[Visit] = []

    def open_(**options: Any) -> Visit:
        visits.append(Visit(browser, url, **options))
        return visits[-1]

    yield open_
    problems = [problem for visit in visits for problem in visit.problems]
    for visit in visits:
        visit.context.close()
    assert problems == []


@pytest.fixture
def visit(browser: Browser, stack: RunningStack) -> Iterator[Callable[..., Visit]]:
    """A function that opens a new browser window on the shared stack. The test fails if a window has problems."""
    with _windows(browser, stack.url) as open_:
        yield open_


@pytest.fixture
def client(context: AppContext) -> FlaskClient:
    """A client of the web app alone, signed in with an admin key."""
    with context.database.write() as session:
        key = keys.create(session, "default", admin=True).key
    return signed_in(create_app(context).test_client(), key)


@pytest.fixture
def served(client: FlaskClient) -> Iterator[str]:
    """The URL of the web app alone, without a broker."""
    server = make_server("127.0.0.1", 0, client.application, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def visit_served(browser: Browser, served: str) -> Iterator[Callable[..., Visit]]:
    """As `visit`, on the web app alone."""
    with _windows(browser, served) as open_:
        yield open_


def signed_in(client: FlaskClient, key: str) -> FlaskClient:
    answer = client.post("/sign-in", data={"key": key})
    assert answer.status_code == 303, answer.text
    return client


def csrf_of(client: FlaskClient) -> str:
    """Return the CSRF token of a client's session."""
    match = re.search(r'name="csrf" value="([0-9a-f]{64})"', client.get("/webhooks").text)
    assert match is not None
    return match[1]
