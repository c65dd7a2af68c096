"""Recipe `generate`: rounds until there are as many good rows as wanted, and the data set of them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchyard import json_lines
from batchyard.recipes import Bars, Block, Child, EndedItem, Histogram, Report, Results, Table, composite
from recipes.generate import rounds
from recipes.generate.options import Generate, Making, check
from recipes.reports import as_text, preference, write_lines

DATASET = "dataset.parquet"
CHAT, PROVENANCE, PAIRS = "chat.jsonl", "provenance.jsonl", "preferences.jsonl"
_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
SCHEMA = pa.schema(
    [
        ("messages", _MESSAGES),
        ("text", pa.string()),
        ("rating", pa.int64()),
        ("seed", pa.int64()),
        ("seed_id", pa.string()),
        ("template", pa.int64()),
        ("persona", pa.string()),
        ("round", pa.int64()),
        ("candidate", pa.int64()),
        ("draft_prompt", pa.string()),
        ("draft_seed", pa.int64()),
        ("answer_seed", pa.int64()),
        ("model", pa.string()),
        ("answer_model", pa.string()),
        ("judge", pa.string()),
    ]
)
"""Columns of dataset.parquet. Those from `rating` on are the provenance."""


def record(row: Mapping[str, Any], options: Making) -> dict[str, Any]:
    """Return a good row as the data set has it."""
    answers = sorted(row["answers"], key=lambda answer: -(answer["rating"] or 0))
    if answers:
        best = answers[0]
        messages = [{"role": "user", "content": row["draft"]}, {"role": "assistant", "content": best["text"]}]
    else:
        best = {"text": row["draft"], "rating": row["rating"], "seed": None}
        messages = [*row["prompt"], {"role": "assistant", "content": row["draft"]}]
    return {
        "messages": [{"role": each["role"], "content": as_text(each["content"])} for each in messages],
        "text": best["text"],
        "rating": best["rating"],
        **{name: row[name] for name in ("seed", "seed_id", "template", "persona", "round", "candidate")},
        "draft_prompt": json_lines.dumps(row["prompt"]).decode(),
        "draft_seed": row["draft_seed"],
        "answer_seed": best["seed"],
        "model": options.model,
        "answer_model": options.answers and options.answers.model,
        "judge": options.judge and options.judge.model,
    }


def pair(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the best and the worst answer to a draft as a preference; None if all are rated alike."""
    rated = [answer for answer in row["answers"] if answer["rating"] is not None]
    return preference([{"role": "user", "content": row["draft"]}], rated, "rating")


def finish(results: Results, options: Generate) -> Report:
    """Write the data set that the last round has left, and what became of the other candidates."""
    made = [item for item in results.items() if item.result.get("job_id") and item.state == "completed"]
    kept = [] if not made else list(_lines(results, made[-1], rounds.KEPT))
    records = [record(row, options) for row in kept]
    write_lines(results, CHAT, ({"messages": each["messages"]} for each in records))
    columns = [name for name in SCHEMA.names if name not in ("messages", "text")]
    write_lines(results, PROVENANCE, ({name: each[name] for name in columns} for each in records))
    with results.create(DATASET) as file:
        pq.write_table(pa.Table.from_pylist(records, SCHEMA), file)
    if options.answers is not None and options.answers.n > 1:
        write_lines(results, PAIRS, filter(None, map(pair, kept)))
    rejected = (row for item in made for row in _lines(results, item, rounds.REJECTED))
    write_lines(results, rounds.REJECTED, rejected)
    metrics = [item.result["metrics"] for item in made]
    for item, each in zip(made, metrics, strict=True):
        if "good" not in each:
            raise ValueError(f"job {item.result['job_id']}, round {item.columns['round'] + 1}, has no report")
    last = metrics[-1] if metrics else vars(rounds.Progress())
    totals = {name: last[name] for name in ("good", "tried", "requests", "tokens", "longest", "rejected")}
    report = {"wanted": options.count, "rounds": len(made), **totals}
    return Report(report, _view(metrics, records), _warnings(report, options))


def _lines(results: Results, item: EndedItem, name: str) -> Iterator[dict[str, Any]]:
    path = results.of_child(str(item.result["job_id"]), name)
    if path is not None:
        with path.open("rb") as lines:
            yield from map(json_lines.read, lines)


def _view(metrics: Sequence[Mapping[str, Any]], records: Sequence[Mapping[str, Any]]) -> list[Block]:
    if not metrics:
        return []
    names = ("tried", "good", "requests", "tokens")
    rows = [[number, *(each[name] for name in names)] for number, each in enumerate(metrics, 1)]
    view: list[Block] = [Table(title="After each round", columns=["round", *names], rows=rows)]
    if rejected := metrics[-1]["rejected"]:
        reasons = sorted(rejected, key=lambda reason: (-rejected[reason], reason))
        values = [rejected[reason] for reason in reasons]
        view.append(Bars(title="Candidates that are no good rows, by reason", labels=reasons, values=values))
    if ratings := [each["rating"] for each in records if each["rating"] is not None]:
        labels = list(range(1, 11))
        counts = [ratings.count(label) for label in labels]
        view.append(Histogram(title="Ratings of the good rows", labels=labels, values=counts))
    return view


def _warnings(report: Mapping[str, Any], options: Generate) -> list[tuple[str, str]]:
    """Return why there are fewer rows than wanted."""
    if report["good"] >= options.count:
        return []
    if report["requests"] + options.cost > options.most_requests:
        reason = f"the budget of {options.most_requests:,} requests is used up; raise `requests`"
    elif options.tokens is not None and report["tokens"] + report["longest"] > options.tokens:
        reason = f"the budget of {options.tokens:,} tokens is used up; raise `tokens`"
    elif report["rounds"] >= options.rounds:
        reason = f"{options.rounds} rounds are over; raise `rounds`"
    else:
        reason = "the last round has had no answers, or the budget is too small for another"
    return [("too_few_rows", f"{report['good']:,} good rows of {options.count:,}: {reason}.")]


@composite("generate", Generate, check=check, finish=finish, main=CHAT)
def generate(options: Generate) -> Sequence[Child]:
    """Generate synthetic data, filtered and without near-duplicates."""
    values = options.model_dump(mode="json", include=set(Making.model_fields))
    return [
        Child("rows", 0, number, "generate-round", values, rounds.NEXT if number else None, optional=bool(number))
        for number in range(options.rounds)
    ]
