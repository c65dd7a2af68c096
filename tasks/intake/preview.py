"""Preview: what the first requests of an input will be, and what is wrong with its beginning, before it is run."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any

import orjson

from batchyard.errors import RequestError
from store.formats.lines import numbered_lines
from tasks.context import AppContext
from tasks.intake.lines import LineError, parse
from tasks.intake.prompts import Prompt, Recipe
from tasks.intake.validation import Report, Validator

HEAD_BYTES = 256 * 1024
"""So much of a large file is looked at."""
SHOWN = 3


@dataclass(frozen=True)
class Preview:
    """What the beginning of an input holds.

    Attributes:
        requests: the first ones.
        count: how many there are in what was looked at.
        whole: whether that was all of it.
        errors: as a batch's `errors.data` has them, with the lines of the input.
    """

    requests: list[dict[str, Any]]
    count: int
    whole: bool
    errors: list[dict[str, Any]]


def head(source: IO[bytes]) -> tuple[bytes, bool]:
    """The lines that a source begins with, and whether these are all."""
    content = source.read(HEAD_BYTES + 1)
    if len(content) <= HEAD_BYTES:
        return content, True
    return content[: content.rfind(b"\n", 0, HEAD_BYTES) + 1], False


def of_requests(context: AppContext, endpoint: str, content: bytes, *, whole: bool) -> Preview:
    """Preview the lines of a batch file."""
    if not content and not whole:  # a first line that is longer than what is looked at
        return Preview([], 0, whole, [])
    report, settings = Report(), context.settings
    validator = Validator(context.models, endpoint, settings.max_requests, settings.max_embedding_inputs)
    validator.run(io.BytesIO(content), None, report)
    lines = list(numbered_lines(io.BytesIO(content)))
    shown = []
    for number, raw in islice(lines, SHOWN):
        try:
            shown.append(parse(number, raw))
        except LineError:
            continue  # among the errors
    return Preview(shown, len(lines), whole, report.errors)


def of_prompts(context: AppContext, recipe: Recipe, found: Iterable[Prompt], *, whole: bool) -> Preview:
    """Preview the requests that prompts make. Raises RequestError for a line that makes none."""
    written, count, line = bytearray(), 0, 1
    try:
        for prompt in found:
            # Each stands on the line of its prompt: blank lines are skipped, but counted.
            written += b"\n" * (prompt.number - line) + orjson.dumps(recipe.request(prompt)) + b"\n"
            count, line = count + 1, prompt.number + 1
    except RequestError:
        if whole or count < SHOWN:
            raise  # otherwise it may be of a row that goes on behind what was read; submitting it reads all
    if whole and not count:
        raise RequestError("There are no prompts: nothing but blank lines.", code="empty_file", param="prompts")
    return of_requests(context, recipe.endpoint, bytes(written), whole=whole)
