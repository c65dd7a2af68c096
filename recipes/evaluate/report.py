"""What recipe `evaluate` leaves behind: answers.jsonl with the wrong ones first, metrics, and blocks of its page."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from batchyard import json_lines
from batchyard.recipes import Block, EndedItem, InvalidItem, Matrix, Report, Results, Table, is_wrong, messages_of
from batchyard.wording import cut
from recipes.evaluate.comparison import compare
from recipes.evaluate.options import JUDGE, Evaluate
from recipes.evaluate.outcomes import MOST_CLASSES, OTHER, Outcomes, text_of
from recipes.measures import intervals
from recipes.measures.paired import is_binary, kappa
from recipes.options import column_of
from recipes.reports import histogram, interval, number

ANSWERS = "answers.jsonl"
CELL = 200
"""Characters of a text in a table of the page."""
BARS = 20


def write(results: Results, options: Evaluate) -> Report:
    """Write the artifacts, and return metrics, page and warnings."""
    outcomes = Outcomes(options)
    with results.create(ANSWERS) as file:
        for item in results.items():
            wrong = [line for line in _lines(item, options) if line["wrong"]]
            outcomes.add(item, len(wrong))
            file.writelines(map(json_lines.line, wrong))
        for item in results.items():
            file.writelines(json_lines.line(line) for line in _lines(item, options) if not line["wrong"])
    metrics: dict[str, Any] = {"questions": len(outcomes), **outcomes.counts}
    estimates = outcomes.estimates()
    metrics |= {label: estimate.document() for label, estimate in estimates.items()}
    rows = [[label, number(each.mean), interval(each.interval), each.n] for label, each in estimates.items()]
    view: list[Block] = [Table(title="Metrics", columns=["metric", "mean", "95 % interval", "questions"], rows=rows)]
    warnings = _warnings(outcomes, options)
    if options.compare_with is not None:
        comparison = compare(results, options.compare_with, outcomes, options.model_dump(mode="json"))
        if isinstance(comparison, str):
            warnings.append(("not_compared", f"There is no comparison with the earlier run: {comparison}."))
        else:
            changes, slices = comparison.pop("changes"), comparison.pop("slices")
            metrics["compared"] = {**comparison, **changes, "slices": slices}
            view += _comparison_tables(comparison, changes, slices)
            warnings += _doubts(comparison)
    for column in outcomes.slices:
        by_value = {name: outcomes.estimates(mask) for name, mask in outcomes.by_slice(column).items()}
        metrics.setdefault("slices", {})[column] = {
            name: {label: each.document() for label, each in of_slice.items()} for name, of_slice in by_value.items()
        }
        of_values = []
        for name, each in by_value.items():
            cells = [
                f"{number(one.mean)} ({interval(one.interval)})" if (one := each.get(label)) else "-"
                for label in estimates
            ]
            of_values.append([cut(name, CELL), max((one.n for one in each.values()), default=0), *cells])
        view.append(Table(title=f"By {column}", columns=[column, "questions", *estimates], rows=of_values))
    metrics |= {"values": outcomes.extra} if outcomes.extra else {}
    if outcomes.agreement:
        metrics["agreement"], tables = _agreement(outcomes, options)
        view += tables
    if (confusion := _confusion(outcomes)) is not None:
        view.append(confusion)
    scores = outcomes.column(options.labels[0])
    scores = scores[np.isfinite(scores)]
    if len(scores) and not is_binary(scores):  # the first metric is more than right or wrong
        ends = min(0.0, float(scores.min())), max(1.0, float(scores.max()))
        view.append(histogram(f"Questions by {options.labels[0]}", scores, BARS, ends))
    return Report(metrics, view, warnings)


def _lines(item: EndedItem, options: Evaluate) -> Iterator[dict[str, Any]]:
    """Yield a line for each answer of a question, whose text is without system message and examples."""
    try:
        question = "\n\n".join(text_of(each.get("content")) for each in messages_of(item.columns, options.template))
    except InvalidItem:
        question = ""
    lost = {"text": None, "score": 0.0, "error": item.error}
    samples = item.result.get("samples") or [lost] * options.repeats
    for at, sample in enumerate(samples, 1):
        yield {
            "custom_id": item.custom_id,
            "number": item.number,
            "repeat": at,
            "question": question,
            "expected": column_of(item.columns, options.ground_truth),
            "answer": sample["text"],
            "predicted": sample.get("pred"),
            "wrong": is_wrong(sample),
            "scores": sample.get("scores") or {},
            "values": sample.get("values") or {},
            **{name: column_of(item.columns, name) for name in options.slices},
            "metric_errors": sample.get("metric_errors") or {},
            **{name: sample.get(name) for name in ("error", "finish_reason", "seed", "output_tokens", "reasoning")},
        }


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


def _comparison_tables(
    comparison: Mapping[str, Any], changes: Mapping[str, Any], slices: Mapping[str, Any]
) -> list[Block]:
    columns = ["metric", "earlier", "now", "difference", "95 % interval", "p", "questions", "verdict"]

    def row(name: str, change: Mapping[str, Any]) -> list[Any]:
        means = [number(change[key]) for key in ("earlier", "now", "mean")]
        ends = interval(change["intervals"].get("mean"))
        return [name, *means, ends, number(change["p"]), change["n"], change["verdict"]]

    rows = [row(*entry) for entry in changes.items()]
    tables: list[Block] = [Table(title=f"Compared with {comparison['job']}", columns=columns, rows=rows)]
    if comparison["changed"]:
        names = [[name] for name in comparison["changed"]]
        tables.append(Table(title="Options that have changed since", columns=["option"], rows=names))
    if slices:
        rows = [row(*entry) for entry in slices.items()]
        title = f"Compared by slice: {next(iter(changes))}"
        tables.append(Table(title=title, columns=["slice", *columns[1:]], rows=rows))
    return tables


def _doubts(comparison: Mapping[str, Any]) -> list[tuple[str, str]]:
    doubts = []
    if left := comparison["only_now"] + comparison["only_earlier"]:
        message = f"{comparison['pairs']} questions are in both runs; {left} are in one, and not compared."
        doubts.append(("partly_compared", message))
    judging = {
        name for name in comparison["changed"] if name.partition(".")[0] in ("metrics", "extract", "ground_truth")
    }
    if judging:
        names = ", ".join(sorted(judging))
        message = f"The earlier run was measured otherwise ({names}): a difference may come from that."
        doubts.append(("other_metrics", message))
    return doubts


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
        message = f"{errors} scores could not be had, and count 0: see metric_errors in {ANSWERS}."
        warnings.append(("metric_errors", message))
    if options.judge is not None and options.judge.against and (first := outcomes.extra.get(f"{JUDGE}/first")):
        consistent = outcomes.extra[f"{JUDGE}/consistent"]
        if consistent < 0.5:
            message = (
                f"The judge chose the same answer in both orders in {consistent:.0%} of comparisons only; it chose "
                f"the first one in {first:.0%}."
            )
            warnings.append(("judge_prefers_a_place", message))
    return warnings
