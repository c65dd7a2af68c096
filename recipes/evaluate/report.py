"""What recipe `evaluate` leaves behind: answers.jsonl with the wrong ones first, metrics, and blocks of its page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from batchyard import json_lines
from batchyard.recipes import (
    Block,
    EndedItem,
    Histogram,
    InvalidItem,
    Matrix,
    Report,
    Results,
    Table,
    is_wrong,
    messages_of,
)
from batchyard.wording import cut
from recipes.evaluate.comparison import MetricChange, RunComparison, compare
from recipes.evaluate.options import JUDGE, Evaluate, ground_truth_of
from recipes.evaluate.outcomes import MOST_CLASSES, OTHER, Outcomes, text_of
from recipes.measures import intervals
from recipes.measures.agreement import kappa
from recipes.measures.estimates import MetricEstimate
from recipes.reports.markdown import interval, number

ANSWERS = "answers.jsonl"
SHOWN = 20
"""Wrong answers on the page, one of a question. All are in answers.jsonl, and among the items."""
CELL = 200
"""Characters of a text in a table of the page."""
BARS = 20


def write(results: Results, options: Evaluate) -> Report:
    """Write the artifacts, and return metrics, page and warnings."""
    outcomes = Outcomes(options)
    shown: list[list[Any]] = []
    with results.create(ANSWERS) as file:
        for item in results.items():
            wrong = [line for line in _lines(item, options) if line["wrong"]]
            outcomes.add(item, len(wrong))
            file.writelines(map(json_lines.line, wrong))
            if wrong and len(shown) < SHOWN:
                shown.append(_row(wrong[0]))
        for item in results.items():
            file.writelines(json_lines.line(line) for line in _lines(item, options) if not line["wrong"])
    metrics: dict[str, Any] = {"questions": len(outcomes), **outcomes.counts}
    estimates = outcomes.estimates()
    metrics |= {label: _document(estimate) for label, estimate in estimates.items()}
    view: list[Block] = [_overview(estimates)]
    warnings = _warnings(outcomes, options)
    if options.compare_with is not None:
        comparison = compare(results, options.compare_with, outcomes, options.model_dump(mode="json"))
        if isinstance(comparison, str):
            warnings.append(("not_compared", f"There is no comparison with the earlier run: {comparison}."))
        else:
            metrics["compared"] = _compared(comparison)
            view += _comparison_tables(comparison)
            warnings += _doubts(comparison)
    for column in outcomes.slices:
        by_value = {name: outcomes.estimates(mask) for name, mask in outcomes.by_slice(column).items()}
        metrics.setdefault("slices", {})[column] = {
            name: {label: _document(each) for label, each in of_slice.items()} for name, of_slice in by_value.items()
        }
        view.append(_slice_table(column, by_value, list(estimates)))
    metrics |= {"values": outcomes.extra} if outcomes.extra else {}
    if outcomes.agreement:
        metrics["agreement"], tables = _agreement(outcomes, options)
        view += tables
    view += [block for block in (_confusion(outcomes), _histogram(outcomes, options)) if block is not None]
    if shown:
        columns = ["item", "question", "expected", "predicted", "answer", options.labels[0]]
        view.append(Table(title=f"Wrong answers, the first {len(shown)}", columns=columns, rows=shown))
    return Report(metrics, view, warnings)


# Lines


def _lines(item: EndedItem, options: Evaluate) -> Iterator[dict[str, Any]]:
    """Yield a line for each answer of a question."""
    lost = {"text": None, "score": 0.0, "error": item.error}
    samples = item.result.get("samples") or [lost] * options.repeats
    for at, sample in enumerate(samples, 1):
        yield {
            "custom_id": item.custom_id,
            "number": item.number,
            "repeat": at,
            "question": _question(item, options),
            "expected": ground_truth_of(item.columns, options.ground_truth),
            "answer": sample["text"],
            "predicted": sample.get("pred"),
            "wrong": is_wrong(sample),
            "scores": sample.get("scores") or {},
            "values": sample.get("values") or {},
            **{name: ground_truth_of(item.columns, name) for name in options.slices},
            "metric_errors": sample.get("metric_errors") or {},
            "error": sample.get("error"),
            "finish_reason": sample.get("finish_reason"),
            "seed": sample.get("seed"),
            "output_tokens": sample.get("output_tokens"),
            "reasoning": sample.get("reasoning"),
        }


def _question(item: EndedItem, options: Evaluate) -> str:
    """Return the text of what was asked, without system message and examples."""
    try:
        messages = messages_of(item.columns, options.template)
    except InvalidItem:
        return ""
    return "\n\n".join(text_of(message.get("content")) for message in messages)


def _row(line: Mapping[str, Any]) -> list[Any]:
    expected = "" if line["expected"] is None else text_of(line["expected"])
    answer = line["answer"] if line["answer"] is not None else f"({(line['error'] or {}).get('code', 'no answer')})"
    texts = [cut(text, CELL) for text in (line["question"], expected, line["predicted"] or "", answer)]
    score = next(iter(line["scores"].values()), 0.0)
    return [line["custom_id"], *texts, number(score)]


# Metrics


def _document(estimate: MetricEstimate) -> dict[str, Any]:
    ends = {} if estimate.interval is None else {"mean": list(estimate.interval)}
    return {"mean": estimate.mean, "n": estimate.n, "intervals": ends}


def _overview(estimates: Mapping[str, MetricEstimate]) -> Table:
    rows = [[label, number(each.mean), interval(each.interval), each.n] for label, each in estimates.items()]
    return Table(title="Metrics", columns=["metric", "mean", "95 % interval", "questions"], rows=rows)


def _slice_table(column: str, by_value: Mapping[str, Mapping[str, MetricEstimate]], labels: Sequence[str]) -> Table:
    rows = []
    for name, estimates in by_value.items():
        cells = [
            f"{number(each.mean)} ({interval(each.interval)})" if (each := estimates.get(label)) else "-"
            for label in labels
        ]
        rows.append([cut(name, CELL), max((each.n for each in estimates.values()), default=0), *cells])
    return Table(title=f"By {column}", columns=[column, "questions", *labels], rows=rows)


def _histogram(outcomes: Outcomes, options: Evaluate) -> Histogram | None:
    """Return how many questions have which score, for one that is more than right or wrong."""
    values = outcomes.column(options.labels[0])
    values = values[np.isfinite(values)]
    if not len(values) or bool(np.all((values == 0) | (values == 1))):
        return None
    counts, edges = np.histogram(
        values, bins=BARS, range=(min(0.0, float(values.min())), max(1.0, float(values.max())))
    )
    labels = [f"{low:.3g} to {high:.3g}" for low, high in pairwise(edges)]
    return Histogram(title=f"Questions by {options.labels[0]}", labels=labels, values=counts.tolist())


def _confusion(outcomes: Outcomes) -> Matrix | None:
    """Return right answers against predicted ones, for a classification."""
    table = outcomes.confusion
    truths = sorted({truth for truth, _ in table or ()})
    if not table or len(truths) < 2 or len(truths) * 2 > sum(table.values()):
        return None
    others = [pred for pred in dict.fromkeys(pred for _, pred in table) if pred not in truths]
    others.sort(key=lambda pred: -sum(count for (_, each), count in table.items() if each == pred))
    kept = others if len(others) <= MOST_CLASSES else others[: MOST_CLASSES - 1]
    columns = [*truths, *kept, *([OTHER] if len(kept) < len(others) else [])]
    values = [[0.0] * len(columns) for _ in truths]
    for (truth, pred), count in table.items():
        values[truths.index(truth)][columns.index(pred if pred in columns else OTHER)] += count
    return Matrix(
        title="Answers: expected (rows) and predicted (columns)",
        rows=[cut(truth, 40) for truth in truths],
        columns=[cut(column, 40) for column in columns],
        values=[[int(value) for value in row] for row in values],
    )


# Comparison


def _compared(comparison: RunComparison) -> dict[str, Any]:
    return {
        "job": comparison.job_id,
        "pairs": comparison.pairs,
        "only_now": comparison.only_now,
        "only_earlier": comparison.only_earlier,
        "changed": comparison.changed,
        **{change.metric: change.document() for change in comparison.changes},
        "slices": {change.slice: change.document() for change in comparison.by_slice},
    }


def _comparison_tables(comparison: RunComparison) -> list[Block]:
    columns = ["metric", "earlier", "now", "difference", "95 % interval", "p", "questions", "verdict"]

    def row(change: MetricChange, name: str) -> list[Any]:
        difference = change.difference
        means = [number(value) for value in (change.earlier, change.now, difference.mean)]
        return [name, *means, interval(difference.interval), number(change.p), difference.n, change.verdict]

    rows = [row(change, change.metric) for change in comparison.changes]
    tables: list[Block] = [Table(title=f"Compared with {comparison.job_id}", columns=columns, rows=rows)]
    if comparison.changed:
        names = [[name] for name in comparison.changed]
        tables.append(Table(title="Options that have changed since", columns=["option"], rows=names))
    if comparison.by_slice:
        by_slice = [row(change, change.slice) for change in comparison.by_slice]
        title = f"Compared by slice: {comparison.by_slice[0].metric}"
        tables.append(Table(title=title, columns=["slice", *columns[1:]], rows=by_slice))
    return tables


def _doubts(comparison: RunComparison) -> list[tuple[str, str]]:
    doubts = []
    if left := comparison.only_now + comparison.only_earlier:
        doubts.append(
            ("partly_compared", f"{comparison.pairs} questions are in both runs; {left} are in one, and not compared.")
        )
    judging = {name for name in comparison.changed if name.partition(".")[0] in ("metrics", "extract", "ground_truth")}
    if judging:
        names = ", ".join(sorted(judging))
        doubts.append(
            ("other_metrics", f"The earlier run was measured otherwise ({names}): a difference may come from that.")
        )
    return doubts


# The judge


def _agreement(outcomes: Outcomes, options: Evaluate) -> tuple[dict[str, Any], list[Block]]:
    """Return how far the judge agrees with people, and its tables."""
    assert options.judge is not None
    judge, people = (np.asarray(side) for side in zip(*outcomes.agreement, strict=True))
    marks = options.judge.passing is None and options.judge.against is None
    low, high = options.judge.range
    scale = [(mark - low) / (high - low) for mark in range(low, high + 1)] if marks else None
    if scale is not None:  # people's marks may lie between two
        people = np.asarray(scale)[np.abs(people[:, None] - np.asarray(scale)).argmin(axis=1)]
    equal = int(np.isclose(judge, people).sum())
    n = len(judge)
    document: dict[str, Any] = {
        "n": n,
        "equal": equal / n,
        "kappa": kappa(judge, people, scale),
        "judge": float(judge.mean()),
        "people": float(people.mean()),
        "intervals": {"equal": list(intervals.wilson(equal, n))},
    }
    rows = [
        ["same verdict", number(document["equal"]), interval(document["intervals"]["equal"])],
        ["Cohen's kappa" + (", squared weights" if marks else ""), number(document["kappa"]), "-"],
        ["mean score by the judge", number(document["judge"]), "-"],
        ["mean score by people", number(document["people"]), "-"],
    ]
    title = f"{JUDGE.capitalize()} and people over {n} answers"
    tables: list[Block] = [Table(title=title, columns=["", "value", "95 % interval"], rows=rows)]
    names = {0.0: "loss", 0.5: "tie", 1.0: "win"} if options.judge.against else {0.0: "fail", 1.0: "pass"}
    if not marks:
        counts = [[int(((people == one) & (judge == other)).sum()) for other in names] for one in names]
        labels = list(names.values())
        tables.append(Matrix(title="People (rows) and judge (columns)", rows=labels, columns=labels, values=counts))
    return document, tables


def _warnings(outcomes: Outcomes, options: Evaluate) -> list[tuple[str, str]]:
    warnings = []
    if lost := outcomes.counts["unanswered"]:
        warnings.append(("unanswered", f"{lost} of {outcomes.counts['answers']} answers are missing, and count 0."))
    if errors := outcomes.counts["metric_errors"]:
        warnings.append(
            ("metric_errors", f"{errors} scores could not be had, and count 0: see metric_errors in {ANSWERS}.")
        )
    if options.judge is not None and options.judge.against and (first := outcomes.extra.get(f"{JUDGE}/first")):
        consistent = outcomes.extra[f"{JUDGE}/consistent"]
        if consistent < 0.5:
            warnings.append(
                (
                    "judge_prefers_a_place",
                    f"The judge chose the same answer in both orders in {consistent:.0%} of comparisons only; it chose "
                    f"the first one in {first:.0%}.",
                )
            )
    return warnings
