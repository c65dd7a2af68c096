"""Problems: the failures of a batch by their code, with a few examples of each, for display."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from batchyard import wording
from batchyard.endpoints import output_lines
from results.filter import Filter
from results.rows import Entry, Rows

EXAMPLES = 3
GROUPS = 20


@dataclass
class Example:
    """One request that failed, or one bad line; then `custom_id` is empty."""

    line: int | None
    custom_id: str
    message: str


@dataclass
class Failures:
    code: str
    count: int = 0
    examples: list[Example] = field(default_factory=list)
    remedy: str = ""


class Problems(NamedTuple):
    """Failures by code, the most frequent GROUPS of them first. `codes` counts all codes."""

    groups: tuple[Failures, ...]
    codes: int


def remedy_of(entry: Entry) -> str:
    """Return what to do about a request that failed."""
    answer = {"response": {"status_code": entry.row.status_code}, "error": entry.row.error}
    return wording.remedy(entry.code, output_lines.is_passing(answer))


def of_validation(errors: Iterable[Mapping[str, Any]]) -> Problems:
    """Return the problems of an invalid input, from the errors that validation reported."""
    groups: dict[str, Failures] = {}
    for entry in errors:
        remedy = wording.remedy(entry["code"], passing=False)
        group = groups.setdefault(entry["code"], Failures(entry["code"], remedy=remedy))
        group.count += 1
        if len(group.examples) < EXAMPLES:
            group.examples.append(Example(entry["line"], "", entry["message"]))
    ordered = sorted(groups.values(), key=lambda group: -group.count)
    return Problems(tuple(ordered[:GROUPS]), len(groups))


def of_rows(rows: Rows) -> Problems:
    """Return the failures of a batch. Raises UnavailableError."""
    codes = rows.codes()
    groups = [Failures(code, count) for code, count in codes[:GROUPS]]
    places = [rows.positions(Filter(code=group.code))[:EXAMPLES] for group in groups]
    chosen = np.unique(np.concatenate([np.zeros(0, np.int64), *places]))
    entries = dict(zip(chosen.tolist(), rows.entries(chosen), strict=True))
    for group, members in zip(groups, places, strict=True):
        for place in members.tolist():
            row = entries[place].row
            group.remedy = remedy_of(entries[place])
            message = (row.failure or {}).get("message")
            group.examples.append(Example(row.line, row.custom_id, str(message or "")))
    return Problems(tuple(groups), len(codes))
