"""What `match` finds, and how many pairs it asks about: python benchmarks/match.py.

Two tables of reviews, three of four rows with a counterpart: the same statements in the other order with other
intensifiers. The bundled `mini-embed` finds the candidates. The large model is a server of this script's own behind
engine `openai`, which knows all counterparts, so precision and recall are exact.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import machine, stack, table, write

from batchyard.client.api import ApiClient
from batchyard.client.match import Matching, matched

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "examples/models"))
import problems  # noqa: E402  # of the demo models, which are no package

from tests.support.servers import Reply, Server, serving  # noqa: E402

ROWS = 2000
SETTINGS = {"BATCHYARD_MIN_WINDOW": "1s"}
QUESTION = "Do both say the same? {left.text} / {right.text}"
WORDS = (*problems.POSITIVE, *problems.NEGATIVE, *problems.NEUTRAL)
RUNS: tuple[dict[str, Any], ...] = (
    {"rows": 2000, "cascade": None, "top": 5, "sample": 1000},
    {"rows": 2000, "cascade": None, "top": 2, "sample": 1000},
    {"rows": 2000, "cascade": "mini-embed", "top": 5, "sample": 1000},
    {"rows": 200, "cascade": None, "top": 5, "sample": 7500},
)
"""What is run; the last sample is large enough to certify the target."""


@dataclass
class Reviewer(Server):
    """The large model: it says yes if two texts make the same statements."""

    about: dict[str, int] = field(default_factory=dict)

    def chosen(self, body: dict[str, Any]) -> Reply:
        left, right = body["messages"][-1]["content"].partition("? ")[2].split(" / ")
        text = "yes" if self.about[left] == self.about[right] else "no"
        if "response_format" in body:
            text = json.dumps({"label": text})
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 40, "completion_tokens": 1, "total_tokens": 41}
        return Reply(body=json.dumps({"model": body["model"], "choices": [choice], "usage": usage}).encode())


def tables(rows: int = ROWS) -> tuple[list[dict[str, str]], list[dict[str, str]], dict[str, int]]:
    """Return two tables, and what each text is about. Smaller ones are parts of those with ROWS."""
    draw, made = random.Random(7), dict[frozenset[tuple[str, str]], None]()
    while len(made) < ROWS + ROWS // 4:
        things = draw.sample(problems.ASPECTS, 2)
        made[frozenset((thing, draw.choice(WORDS)) for thing in things)] = None
    about: dict[str, int] = {}

    def text(number: int, statements: list[tuple[str, str]]) -> dict[str, str]:
        said = [f"the {thing} was {draw.choice(problems.INTENSIFIERS)}{word}" for thing, word in statements]
        review = " and ".join(said).capitalize() + "."
        about[review] = number
        return {"text": review}

    ordered = [sorted(statements) for statements in made]
    first = ROWS // 4
    left = [text(number, ordered[number]) for number in range(ROWS)][first - rows // 4 :][:rows]
    right = [text(number, ordered[number][::-1]) for number in range(first, first + ROWS)][:rows]
    draw.shuffle(right)
    return left, right, about


def run(server: ApiClient, options: dict[str, Any]) -> dict[str, Any]:
    """Match two tables, and measure what was found."""
    left, right, about = tables(options["rows"])
    how = {"server": server, "progress": False, "window": "24h", "again": False}
    targets = {"recall": 0.9, "precision": 0.95} if options["cascade"] else {"recall": 0.9}
    question = Matching(QUESTION, "large", options["cascade"], targets, how)
    sizes = {name: options[name] for name in ("top", "sample")}
    made = matched(left, right, question, embed="mini-embed", seed=7, **sizes)
    found = made.frames[0].apart(made.columns())
    same = sum(about[row["left.text"]] == about[row["right.text"]] for row in found)
    wanted = len({about[row["text"]] for row in left} & {about[row["text"]] for row in right})
    measured = {"recall": same / wanted, "precision": same / len(found), "target": targets["recall"]}
    return {**options, **made.report, **measured}


def report(made: Sequence[dict[str, Any]], facts: dict[str, Any]) -> None:
    columns = [
        "rows",
        "cascade",
        "top",
        "candidates",
        "sample",
        "pairs asked",
        "recall",
        "precision",
        "certified recall",
    ]
    lines = [
        [
            f"{each['rows']:,} by {each['rows']:,}",
            each["cascade"] or "-",
            each["top"],
            f"{each['candidates']:,}",
            f"{each['drawn']:,}",
            f"{each['asked'] / each['pairs']:.2%}",
            f"{each['recall']:.1%}",
            f"{each['precision']:.1%}",
            f"{each['recall_at_least']:.1%}",
        ]
        for each in made
    ]
    summary = "Target: recall 0.9, with a cascade also precision 0.95."
    write("match", {"machine": facts, "settings": SETTINGS, "runs": made}, table(columns, lines), summary)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    # Nothing is timed, so the load plays no part.
    facts = {name: fact for name, fact in machine("numpy", "transformers").items() if name != "load before"}
    with serving(Reviewer(serves="large", about=tables()[2])) as (reviewer,):
        models = f"""
[models.large]
engine = "openai"
max_in_flight = 64
engine_args.endpoints = [{{ url = "{reviewer.url}" }}]
[models.mini-embed]
engine = "transformers"
source = "{ROOT}/examples/models/embed"
endpoints = ["/v1/embeddings"]
engine_args.dtype = "float32"
"""
        with stack(models, SETTINGS) as (server, _):
            made = [run(server, options) for options in RUNS]
    report(made, facts)


if __name__ == "__main__":
    main()
