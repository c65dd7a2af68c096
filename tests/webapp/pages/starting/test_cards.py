"""/begin: every card leads to a form that is filled in, and what it submits really runs, on the bundled models."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from flask.testing import FlaskClient
from playwright.sync_api import Browser, Page, expect

from batchyard.errors import RequestError
from tests.support.rows import until
from tests.support.stacks import PATIENCE, ROOT, RunningStack
from tests.webapp.pages.conftest import Visit, csrf_of
from webapp.pages.starting import examples

SIX = ("prompts", "label", "evaluate", "synthetic", "embed", "rank")
RESULTS = {"samples": "best.jsonl", "refine": "done.jsonl", "panel": "panel.jsonl", "compare": "results.jsonl"}
NAMES = [*SIX, *RESULTS]
SECONDS = 60
"""From a table to its first three answers, on a quick and idle machine."""
needs_models = pytest.mark.skipif(find_spec("transformers") is None, reason="needs torch and transformers")


def test_six_cards_say_what_one_can_do_and_each_has_a_file_a_command_and_a_description() -> None:
    cards = examples.cards()
    assert tuple(name for name, card in cards.items() if not card.more) == SIX
    for card in cards.values():
        assert (ROOT / "examples" / card.input).is_file()
        assert f"examples/{card.options if card.name in ('compare', 'evaluate') else card.input}" in card.command
        document, _, anchor = card.docs.partition("#")
        headings = re.findall(r"^#+ (.+)$", (ROOT / document).read_text(), re.MULTILINE)
        anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
        assert anchor in anchors, f"{card.docs} is a heading"


def test_the_description_of_each_card_has_its_command() -> None:
    text = (ROOT / "docs/start.md").read_text()
    for name in SIX:
        command = examples.cards()[name].command
        assert command.replace("batchyard ", ".venv/bin/batchyard ", 1) in text.replace(" \\\n  ", " "), name


@pytest.mark.parametrize("name", NAMES)
def test_a_card_is_a_click_away_from_its_form(client: FlaskClient, name: str) -> None:
    card = examples.cards()[name]
    links = re.findall(r'<a href="([^"]+)">([^<]+)</a>', client.get("/begin").text)
    (href,) = (href.replace("&amp;", "&") for href, title in links if title == card.title)
    form = client.get(href).text
    assert f'value="example:{card.input}" selected' in form
    if card.recipe:
        assert f"New job: {card.recipe}" in form
    for field, value in card.fields.items():
        if field not in ("endpoint", "model", "on_invalid", "step.parquet"):
            assert value in form


def test_an_empty_project_is_shown_the_way_to_the_cards(client: FlaskClient) -> None:
    assert 'href="/begin"' in client.get("/").text.partition("<main")[2]


def test_only_files_of_cards_are_examples(client: FlaskClient) -> None:
    for name in ("../README.md", "start.toml", "models/mini/config.json", ""):
        data = {"csrf": csrf_of(client), "stored": f"example:{name}", "option.model": "echo"}
        answer = client.post("/new/job/batch", data=data)
        assert answer.status_code == 400
        assert "There is no example" in answer.text
    with pytest.raises(RequestError, match="There is no example 'nothing'"):
        examples.card("nothing")
    assert client.get("/new?example=nothing").status_code == 400


@pytest.fixture
def visitor(browser: Browser, faulty: RunningStack) -> Iterator[Page]:
    window = Visit(browser, faulty.url)
    yield window.sign_in(faulty.key)
    window.context.close()
    assert window.problems == []


def start(page: Page, title: str) -> str:
    """Start what a card offers, in four clicks from the list of work; return the id of the batch or the job."""
    page.goto("/")
    page.get_by_role("link", name="Start", exact=True).click()
    page.get_by_role("link", name=title).click()
    expect(page.locator("#shown .ask").first).to_be_visible()
    page.locator("#submit").click()
    page.wait_for_url(re.compile("/(batches|jobs)/(batch|job)_"))
    return page.url.rpartition("/")[2]


def ended(stack: RunningStack, work_id: str) -> Callable[[str], bytes]:
    """Wait until a batch or a job has ended well; return a function that reads its artifacts by name."""
    if work_id.startswith("batch_"):
        batch = stack.wait(stack.client.batches.retrieve(work_id))
        assert batch.status == "completed", batch
        return lambda name: stack.artifact(batch, name)
    job = stack.wait_for_job(stack.client.get(f"/jobs/{work_id}", cast_to=object))  # type: ignore[arg-type]
    assert job["status"] == "completed", job
    files = {entry["name"]: entry["file_id"] for entry in job["batchyard"]["artifacts"]}
    return lambda name: stack.client.files.content(files[name]).content


def lines(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.splitlines()]


def texts(content: bytes) -> dict[str, str]:
    return {line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"] for line in lines(content)}


# The test after this one shows that further cards begin, and tests of their recipes run them to their ends. The last
# test runs `label`, too.
@pytest.mark.exhaustive
@needs_models
@pytest.mark.parametrize("name", ["evaluate", "prompts", "synthetic", "embed", "rank", "label", *RESULTS])
def test_what_a_card_starts_really_runs(visitor: Page, faulty: RunningStack, name: str) -> None:
    read = ended(faulty, start(visitor, examples.cards()[name].title))
    if name == "prompts":
        answers = texts(read("output.jsonl"))
        assert (answers["prompt-1"], answers["prompt-5"]) == ("95", "nedrag")
    elif name == "label":
        answers = texts(read("output.jsonl"))
        assert [json.loads(text)["sentiment"] for text in answers.values()] == [
            *("positive", "negative", "positive", "negative", "positive")
        ]
        assert len(lines(read("errors.jsonl"))) == 1, "the row without a text"
    elif name == "evaluate":
        wrong = [line["wrong"] for line in lines(read("answers.jsonl"))]
        assert len(wrong) == 40 and sum(wrong) < 4
    elif name == "synthetic":
        chats = [line["messages"] for line in lines(read("chat.jsonl"))]
        assert len(chats) == 30 and len({question["content"] for question, _ in chats}) > 20
        for question, answer in chats:
            first, second = map(int, re.findall(r"\d+", question["content"]))
            assert answer["content"] == str(first + second)
    elif name == "embed":
        table = pq.read_table(io.BytesIO(read("results.parquet"))).to_pydict()
        assert table["custom_id"][:2] == ["screen", "software"]
        assert {len(vectors[0]) for vectors in table["embeddings"]} == {128}
    elif name == "rank":
        first = {line["custom_id"]: line["result"]["ranking"][0]["passage"] for line in lines(read("results.jsonl"))}
        assert first == {
            "terrible": "The software was really annoying.",
            "wonderful": "The screen was excellent.",
            "sum": "What is 37 + 58?",
            "sort": "Sort these numbers: 42, 7, 19",
        }
    else:
        assert lines(read(RESULTS[name]))


@needs_models
@pytest.mark.parametrize(
    "name", ["compare", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("samples", "refine", "panel"))]
)
def test_what_a_further_card_starts_begins(visitor: Page, faulty: RunningStack, name: str) -> None:
    path = f"/jobs/{start(visitor, examples.cards()[name].title)}"

    def job() -> Any:
        return faulty.client.get(path, cast_to=object)

    until(lambda: job()["status"] != "validating")
    assert job()["status"] == "in_progress", job()["errors"]
    assert faulty.wait_for_job(faulty.client.post(f"{path}/cancel", cast_to=object))["status"] == "cancelled"  # type: ignore[arg-type]


@needs_models
def test_a_table_has_its_first_three_answers_within_a_minute_on_a_warm_stack(
    visitor: Page, faulty: RunningStack, tmp_path: Path
) -> None:
    ended(faulty, start(visitor, "Label a table"))  # warm: an engine runs
    expect(visitor.locator("[data-live]")).to_have_count(0)  # the page of what has ended reloads itself no more
    table = tmp_path / "mine.csv"
    adjectives = ("great", "awful", "lovely", "broken", "superb")
    table.write_text("nr,review\n" + "".join(f"{n},The food was {word}.\n" for n, word in enumerate(adjectives)))
    began = time.monotonic()
    visitor.goto("/new")
    visitor.get_by_label("Model", exact=True).select_option("mini")
    visitor.get_by_label("File", exact=True).set_input_files(table)
    visitor.get_by_role("button", name="review", exact=True).click()
    visitor.get_by_label("Template").press("Home")
    visitor.get_by_label("Template").press_sequentially("Classify the sentiment of this review: ")
    expect(visitor.locator(".prompt").first).to_have_text("Classify the sentiment of this review: The food was great.")
    visitor.get_by_label("Template").press("Control+Enter")
    visitor.wait_for_url("**/batches/batch_*")
    expect(visitor.get_by_text('"sentiment": "positive"').nth(2)).to_be_visible()
    seconds = time.monotonic() - began
    print(f"from a table to its first three answers: {seconds:.1f} s")
    assert seconds < PATIENCE * SECONDS
