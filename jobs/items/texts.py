"""The texts of items in lists: what each asks, its answer, the expected one, and its scores; cut."""

from typing import Any

from batchyard import json_lines
from batchyard.recipes import InvalidItem, messages_of
from batchyard.wording import cut
from jobs.items.states import ItemRow
from recipes.options import column_of
from recipes.reports import as_text
from store.formats.items import Reader
from store.records import Job

SHOWN = 300


def fill(item: ItemRow, job: Job, reader: Reader, position: int, result: str | None) -> None:
    """Set the texts and scores of an item with this result (JSON), as far as they are known."""
    (stored,) = reader.read(position, 1)
    values = json_lines.loads(result) if result else None
    item.answer = _shown(values.get("text")) if isinstance(values, dict) else None
    item.scores = [float(sample["score"]) for sample in samples(values)]
    template = job.options.get("template")
    try:
        last = messages_of(stored.columns, template if isinstance(template, str) else None)[-1].get("content")
    except InvalidItem:  # a recipe that asks in its own words
        last = None
    if isinstance(last, list):
        last = "\n".join(str(part["text"]) for part in last if isinstance(part, dict) and part.get("text"))
    item.question = _shown(last)
    column = job.options.get("ground_truth")
    expected = column_of(stored.columns, column) if isinstance(column, str) else None
    item.expected = None if expected is None else _shown(as_text(expected))


def samples(result: Any) -> list[dict[str, Any]]:
    """Return the samples in an item's result that have a score."""
    listed = result.get("samples") if isinstance(result, dict) else None
    scored = [sample for sample in listed or () if isinstance(sample, dict)]
    return [sample for sample in scored if isinstance(sample.get("score"), int | float)]


def _shown(text: Any) -> str | None:
    return cut(text, SHOWN) if isinstance(text, str) else None
