"""The layout of the pages on a phone, and for screen readers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.support.stacks import RunningStack, a_chat
from tests.support.webapps import context_in
from tests.webapp.pages.conftest import Visit
from webapp import create_app

PAGES = (
    "/begin",
    "/new",
    "/new/job/refine?example=refine",
    *(f"/new/job/{recipe}" for recipe in ("batch", "experiment", "panel", "rank", "rollout", "tune")),
    "/files",
    "/models",
    "/models/echo",
    "/models/echo/try",
    "/keys",
    "/schedules",
    "/schedules/new",
    "/webhooks",
)


def test_the_menu_of_a_phone_leads_to_every_page(visit: Callable[..., Visit], stack: RunningStack) -> None:
    window = visit(viewport={"width": 390, "height": 800})
    page = window.sign_in(stack.key)
    expect(page.get_by_role("navigation", name="Pages")).to_have_count(0)
    page.get_by_text("Menu", exact=True).click()
    expect(page.get_by_role("navigation", name="Pages").get_by_role("link")).to_have_count(10)
    window.check_accessibility()
    page.get_by_role("link", name="Schedules").click()
    page.wait_for_url("**/schedules")
    page.get_by_text("Menu", exact=True).click()
    expect(page.get_by_role("link", name="Schedules")).to_have_attribute("aria-current", "page")


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.exhaustive)])
def test_the_reference_of_the_api_is_accessible(visit: Callable[..., Visit], scheme: str) -> None:
    window = visit(color_scheme=scheme)
    window.page.goto("/docs")
    expect(window.page.get_by_role("button", name="get /v1/models").first).to_be_visible()
    window.check_accessibility()


def test_every_page_fits_a_phone_and_is_accessible_in_the_dark(
    visit: Callable[..., Visit], stack: RunningStack
) -> None:
    window = visit(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = window.sign_in(stack.key)
    for path in (*PAGES, "/batches/nope"):
        page.goto(path)
        window.check_accessibility()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    window.problems.clear()  # the browser logs the 404


NO_PAGES = (".download", ".raw", ".content", "selection.show", "_oidc")
"""Parts of endpoints that send files, a page of what was ticked on another one, or the browser elsewhere."""
OUTSIDE = """
() => [...document.querySelectorAll("main *, header *, footer *")].filter(element => {
  const box = element.getBoundingClientRect();
  return box.width && (box.right > innerWidth + 1 || box.left < -1) && element.checkVisibility()
    && !element.closest(".scroll, pre, svg, .hidden, .rendered, .skip");
}).map(element => element.outerHTML.slice(0, 120)).slice(0, 3)
"""
"""What of a page a reader cannot see or scroll to."""


@pytest.fixture(scope="module")
def objects(stack: RunningStack) -> dict[str, Any]:
    """One of each kind of thing that has a page, with long names and texts: values of the parameters of URLs."""
    name = "a-name-of-a-batch-that-nobody-would-read-to-its-end-" * 2
    batches = []
    for answer in ("no", "question 1"):
        lines = [
            a_chat(
                f"{name}{number}", f"question {number} " * 9, metadata={"task": "sums-of-numbers", "expected": answer}
            )
            for number in range(4)
        ]
        batch = stack.submit(
            [*lines, a_chat("fails", "x", model="failing"), a_chat("fails too", "y", model="failing")],
            metadata={"name": name},
            extra_body={"post_process": [{"step": "score"}]},
        )
        batches.append(stack.wait(batch).id)

    def post(path: str, **body: Any) -> Any:
        return stack.client.post(path, cast_to=object, body=body)

    options = {"model": "echo", "n": 2, "reward": "exact", "ground_truth": "answer"}
    rows = json.dumps({"prompt": name, "answer": name}).encode()
    source = stack.client.files.create(file=("rows.jsonl", rows), purpose="user_data")
    job = stack.wait_for_job(post("/jobs", recipe="rollout", options=options, input_file_id=source.id, name=name))
    file = stack.client.files.create(file=(f"{name}.jsonl", b"{}"), purpose="batch")
    batch = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
    schedule = post("/schedules", name=name, cron="0 3 * * *", input={"file_id": file.id}, batch=batch)
    webhook = post("/webhook_endpoints", name=name[:64], url=f"http://127.0.0.1/{name}", event_types=["batch.failed"])
    return {
        "batch_id": batches[0],
        "other": batches[1],
        "line": 1,
        "job_id": job["id"],
        "number": 1,
        "recipe": "refine",
        "name": "echo",  # a model
        "schedule_id": schedule["id"],
        "webhook_id": webhook["id"],
        "project_id": stack.client.get("/projects", cast_to=object)["data"][0]["id"],  # type: ignore[index]
    }


@pytest.fixture(scope="module")
def paths(objects: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Every page there is."""
    rules = create_app(context_in(tmp_path_factory.mktemp("app"))).url_map.iter_rules()
    pages = [rule for rule in rules if rule.endpoint.startswith("pages.") and "GET" in (rule.methods or ())]
    shown = [rule for rule in pages if not any(end in rule.endpoint for end in NO_PAGES)]
    built = [rule.build({name: objects[name] for name in rule.arguments}) for rule in shown]
    job = f"/jobs/{objects['job_id']}"
    return [
        *(path for _, path in filter(None, built) if path != "/compare"),
        f"/compare?a={objects['batch_id']}&b={objects['other']}",
        *(f"{job}?tab={tab}" for tab in ("items", "files", "options")),
    ]


@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.exhaustive)])
def test_no_page_is_cut_or_scrolls_sideways(
    visit: Callable[..., Visit], stack: RunningStack, paths: list[str], width: int
) -> None:
    window = visit(viewport={"width": width, "height": 800})
    page = window.sign_in(stack.key)
    assert len(paths) > 20
    problems = []
    for path in paths:
        answer = page.goto(path)
        assert answer is not None and answer.status == 200, path
        if page.evaluate("document.documentElement.scrollWidth") > width:
            problems.append(f"{path} scrolls sideways")
        problems += [f"{path}: outside {element}" for element in page.evaluate(OUTSIDE)]
        if path.startswith(("/files", "/compare")):
            boxes = "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth).length"
            problems += [f"{path}: a table has to be scrolled"] if page.evaluate(boxes) else []
    assert problems == []
