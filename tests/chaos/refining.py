"""A job of recipe refine for campaigns: two tiers, a gate, verdicts, votes with ties, and blind reviews with probes.

All engines are `echo`, so what a request asks for is what it is answered. The last line of each answer is its name, to
which each attempt adds a letter: `run1-3`, `run1-3.r` after a retry, `run1-3.r.e` after that on the second tier. Its
first line, PASS or FAIL, is what the reviewer says.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jobs.kinds.item_checks import PROBED_ITEMS
from tests.chaos.program import Program

ITEMS = 600
LATENCY_MS = 1500
WRITERS, OTHERS = "writers", "others"
"""The logs of calls: of both tiers; of voter, arbiter and reviewer, who are one model."""
MODELS = f"""
[models.small]
engine = "echo"
max_in_flight = 64
engine_args = {{ latency_ms = {LATENCY_MS}, call_log = "{{calls}}/{WRITERS}" }}
[models.large]
engine = "echo"
max_in_flight = 64
engine_args = {{ latency_ms = {LATENCY_MS}, call_log = "{{calls}}/{WRITERS}" }}
[models.other]
engine = "echo"
max_in_flight = 64
engine_args = {{ latency_ms = {LATENCY_MS}, call_log = "{{calls}}/{OTHERS}" }}
"""
OPTIONS: dict[str, Any] = {
    "tiers": ["small", "large"],
    "gates": ["contains:{{needs}}", "external:house"],
    "votes": {
        "models": ["other"],
        "extract": r"regex:(?s)^(.*-\d+)",  # all before the letters
        "arbiter": {"model": "other", "prompt": "{candidates}.a"},
    },
    "reviewer": {"model": "other", "prompt": "{answer}.v", "sampling": {"temperature": 0.8}},
    "probes": 0.2,
    "prompts": {"retry": "{answer}.r", "escalate": "PASS\n{answer}.e"},
}
_NAMES = {WRITERS: re.compile(r"\w+-\d+(\.[re])*"), OTHERS: re.compile(r"\w+-\d+((\.[re])*\.[av])?")}


@dataclass(frozen=True)
class Kind:
    """What becomes of an item.

    Attributes:
        first: the first line of its prompt.
        needs: what the gate wants to see in its answer.
        refusals: verdicts that it does not pass, before those that it passes.
        writers, others: the requests that it makes, as its name is followed by.
    """

    end: str
    writers: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    first: str = "PASS"
    needs: str = ""
    refusals: int = 0


ACCEPTED = Kind("completed", ("",), ("", ".v"))
KINDS = (
    ACCEPTED,
    Kind("completed", ("", ".r"), ("", ".r.v"), needs=".r"),
    # The answer on the second tier has one line more than the voter's, so the arbiter has to choose.
    Kind("completed", ("", ".r", ".r.e"), ("", ".a", ".r.e.v"), needs=".e"),
    Kind("stuck", ("", ".r", ".r.e", ".r.e.r"), needs="!"),
    Kind("completed", ("", ".r", ".r.e"), ("", ".v", "", ".r.v", "", ".a", ".r.e.v"), first="FAIL"),
    Kind("completed", ("", ".r"), ("", ".r.v"), refusals=1),
    Kind("stuck", ("", ".r", ".r.e", ".r.e.r"), refusals=4),
)
UNASKED = Kind("failed")
"""An item with an image that no engine may fetch: none of its requests is made."""


def kind(number: int) -> Kind:
    """Return the kind of an item. One that no engine is asked would be refused among those that validation tries."""
    at = number % (len(KINDS) + 1)
    if at < len(KINDS):
        return KINDS[at]
    return UNASKED if number >= PROBED_ITEMS else ACCEPTED


def rows(items: int, tag: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a job whose requests' names begin with this tag."""
    for number in range(items):
        own = kind(number)
        prompt: Any = f"{own.first}\n{tag}-{number}"
        if own is UNASKED:
            image = {"type": "image_url", "image_url": {"url": "https://example.com/image.png"}}
            prompt = [{"role": "user", "content": [{"type": "text", "text": prompt}, image]}]
        yield {"custom_id": f"q{number}", "prompt": prompt, "needs": own.needs}


def requests(items: int, tag: str) -> Counter[str]:
    """Return how often each request of such a job is made, without the probes."""
    names = Counter[str]()
    for number in range(items):
        own = kind(number)
        for log, suffixes in ((WRITERS, own.writers), (OTHERS, own.others)):
            names.update(f"{tag}-{number}{suffix}@{log}" for suffix in suffixes)
    return names


def name_of(log: Path, line: str) -> str:
    """Return the name of the request that a line of a log belongs to. Each request has one such line.

    A probe has the name of the review of the answer that it shows.
    """
    return f"{line}@{log.name}" if _NAMES[log.name].fullmatch(line) else ""


def passes(number: int, nth: int) -> bool:
    """Return the nth verdict of an item, from 0."""
    return nth >= kind(number).refusals


def body(file_id: str) -> dict[str, Any]:
    """Return the body of POST /v1/jobs for a file of these rows."""
    return {"recipe": "refine", "input_file_id": file_id, "options": OPTIONS}


def program(items: int = ITEMS) -> Program:
    return Program(
        summary="recipe refine: two tiers, a gate, verdicts, votes, an arbiter and blind reviews",
        models=MODELS,
        logs=(WRITERS, OTHERS),
        rows=partial(rows, items),
        requests=partial(requests, items),
        ends=Counter(kind(number).end for number in range(items)),
        body=body,
        artifacts=("done.jsonl", "stuck.jsonl"),
        name_of=name_of,
        passes=passes,
    )
