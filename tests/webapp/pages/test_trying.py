"""/models/<name>/try in a browser: the answer as it comes, how fast that is, and a button that stops it."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import expect

from tests.support.stacks import RunningStack
from tests.webapp.pages.conftest import Visit


def test_an_answer_is_streamed_and_its_speed_is_shown(visit: Callable[..., Visit], stack: RunningStack) -> None:
    window = visit()
    page = window.sign_in(stack.key, "/models/echo/try")
    page.get_by_label("Prompt").fill("one two three four five <b>six</b>")
    page.get_by_label("Prompt").press("Control+Enter")
    expect(page.get_by_role("group", name="answer")).to_have_text("one two three four five <b>six</b>")
    figures = re.compile(
        r"first token after [\d.]+ m?s, 6 tokens in [\d.]+ m?s, [\d.]+ tokens a second (after the first|overall)"
    )
    expect(page.get_by_role("status")).to_have_text(figures)
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    page.get_by_text("As code").click()
    expect(page.get_by_role("group", name="Python")).to_contain_text("'content': 'one two three")
    window.check_accessibility()
    page.get_by_label("Max tokens").fill("0")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("max_tokens")
    window.problems.clear()  # the browser notes a refused request


def test_an_answer_can_be_stopped(visit: Callable[..., Visit], stack: RunningStack) -> None:
    page = visit().sign_in(stack.key, "/models/late/try")
    page.get_by_label("Prompt").fill("hello")
    page.get_by_role("button", name="Send").click()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status")).to_have_text("stopped")
    expect(page.get_by_role("button", name="Send")).to_be_enabled()


def test_it_works_without_scripts(visit: Callable[..., Visit], stack: RunningStack) -> None:
    page = visit(java_script_enabled=False).sign_in(stack.key, "/models")
    page.get_by_role("link", name="Try echo").click()
    page.get_by_label("Prompt").fill("one two")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("group", name="answer")).to_have_text("one two")
    expect(page.get_by_text(re.compile(r"2 tokens in [\d.]+ (ms|s|min)"))).to_be_visible()
