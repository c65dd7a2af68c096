"""A job of recipe cascade for campaigns. Its answers are planted, so that its requests are known."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from recipes.cascade.rounds import ROUNDS
from tests.chaos.program import Program
from tests.recipes.cascade.made import planted, run

ROWS = 800
OPTIONS: dict[str, Any] = {"model": "large", "proxy": "small", "agree": 0.9}
MODELS = """
[models.small]
engine = "echo"
max_in_flight = 64
engine_args = { latency_ms = 1000, call_log = "{calls}/calls" }
[models.large]
engine = "echo"
max_in_flight = 64
engine_args = { latency_ms = 1000, call_log = "{calls}/calls" }
"""


def rows(tag: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a job whose requests' names begin with this tag."""
    draw = random.Random(3)
    for number in range(ROWS):
        p = round(draw.uniform(0.4, 0.999), 3)
        small = "bad" if p < 0.7 and draw.random() < 0.5 else "good"
        text = f"<small {p}>{small}</small> <large 1>good</large>"
        yield {
            "custom_id": f"q{number}",
            "name": f"{tag}-{number}",
            "text": text,
            "small": small,
            "large": "good",
            "p": p,
        }


@cache
def _by_large() -> frozenset[int]:
    """Return the rows that the large model is asked about."""
    table = [row | {"prompt": row["text"]} for row in rows("")]
    with tempfile.TemporaryDirectory() as folder:
        _, results = run(Path(folder), planted, table, **OPTIONS)
    lines = enumerate(results.lines("answers.jsonl"))
    return frozenset(number for number, line in lines if line["answered_by"] == "large")


def requests(tag: str) -> Counter[str]:
    """Return how often each request of such a job is made."""
    return Counter({f"{tag}-{number}": 1 + (number in _by_large()) for number in range(ROWS)})


def body(file_id: str, **options: Any) -> dict[str, Any]:
    """Return the body of POST /v1/jobs for a file of these rows."""
    values = {**OPTIONS, "template": "{name} {text}"}
    return {"recipe": "cascade", "input_file_id": file_id, "options": values, **options}


def program() -> Program:
    """Return the job that a campaign of kills runs again and again."""
    return Program(
        summary=f"{ROWS:,} rows that two models answer",
        models=MODELS,
        logs=("calls",),
        rows=rows,
        requests=requests,
        ends=Counter(completed=ROUNDS),
        body=partial(body),
        artifacts=("answers.jsonl",),
    )
