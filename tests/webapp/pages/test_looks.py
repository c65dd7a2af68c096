"""The layout of the pages on a phone, and for screen readers."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.stacks import RunningStack
from tests.webapp.pages.conftest import Visit

PAGES = (
    "/begin",
    "/new",
    "/new/job/refine?example=refine",
    "/new/job/experiment",
    "/files",
    "/models",
    "/keys",
    "/schedules",
    "/schedules/new",
    "/webhooks",
)


def test_every_page_fits_a_phone_and_is_accessible_in_the_dark(
    visit: Callable[..., Visit], stack: RunningStack
) -> None:
    window = visit(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = window.sign_in(stack.key)
    for path in PAGES:
        page.goto(path)
        window.check_accessibility()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
