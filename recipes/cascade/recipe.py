"""Recipe `cascade`: rounds until a small model's answers are certified, and the answers of both models."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from batchyard.recipes import Block, Child, Histogram, Report, Results, Table, composite
from recipes.cascade import rounds
from recipes.cascade.options import Cascade, Round, check
from recipes.reports import interval, number


def finish(results: Results, options: Cascade) -> Report:
    """Take the answers of the last round, and report."""
    made = [item for item in results.items() if item.result.get("job_id")]
    last = next((item for item in reversed(made) if item.state == "completed"), None)
    path = None if last is None else results.of_child(str(last.result["job_id"]), rounds.ANSWERS)
    with results.create(rounds.ANSWERS) as file:
        if path is not None:
            with path.open("rb") as answers:
                shutil.copyfileobj(answers, file)
    if last is None or path is None:
        return Report(warnings=[("unfinished", "A round has not completed. Completed rounds are taken by a new job.")])
    metrics = dict(last.result["metrics"])
    target = {"agree": options.agree, "confidence": options.confidence, "rounds": len(made)}
    return Report(target | metrics, _view(metrics, options), _warnings(metrics, options))


def _view(metrics: Mapping[str, Any], options: Cascade) -> list[Block]:
    tokens, alone, audit = metrics["tokens"], metrics["large_alone"], metrics["audit"]
    columns = ["model", "rows answered", "requests", "input tokens", "output tokens"]
    models = [
        [options.proxy, metrics["proxy"], *tokens["proxy"].values()],
        [options.model, metrics["large"], *tokens["large"].values()],
        [f"{options.model} alone (estimated)", metrics["rows"], *alone.values()],
    ]
    target = f"{options.agree:g} of all rows with probability {options.confidence:g}"
    facts = [
        ["certified agreement", target if metrics["certified"] else "none: the large model answered all rows"],
        ["least confidence of the small model's answers", number(metrics["threshold"])],
        ["rows in the sample", metrics["sampled"]],
        ["small model's agreement in the sample", _mean(metrics["proxy_agreement"])],
        ["agreement of all rows by the audit", _mean(audit)],
        ["large model's tokens, of those that it would take alone", number(metrics["large_share"])],
    ]
    edges = [f"{bin_ / rounds.BINS:g} to {(bin_ + 1) / rounds.BINS:g}" for bin_ in range(rounds.BINS)]
    return [
        Table(title="Models", columns=columns, rows=models),
        Table(title="Agreement", columns=["", "value"], rows=facts),
        Histogram(title="Confidence of the small model", labels=[*edges], values=metrics["confidences"]),
    ]


def _mean(share: Mapping[str, Any]) -> str:
    ends = share["intervals"].get("mean")
    return number(share["mean"]) + ("" if ends is None else f" ({interval(ends)}), n = {share['n']}")


def _warnings(metrics: Mapping[str, Any], options: Cascade) -> list[tuple[str, str]]:
    warnings = []
    if not metrics["certified"]:
        if metrics["unusable"] == metrics["rows"]:
            reason = "the small model gave no answer with a confidence"
        elif not metrics["looks"]:
            reason = f"{metrics['rows']:,} rows are too few for this agreement; lower `agree` or `confidence`"
        else:
            reason = "at every threshold the small model differs too often, or its confidences are equal"
        warnings.append(("not_certified", f"The large model was asked about every row: {reason}."))
    if metrics["unusable"]:
        message = f"{metrics['unusable']:,} rows have no usable answer of the small model, so the large one was asked."
        warnings.append(("proxy_unusable", message))
    if metrics["failed"]:
        message = f"The large model has not answered {metrics['failed']:,} rows; column `error` says why."
        warnings.append(("rows_failed", message))
    ends = metrics["audit"]["intervals"].get("mean")
    if ends is not None and ends[1] < options.agree:
        message = f"The audit finds an agreement of {interval(ends)}: this run is one of those that miss the target."
        warnings.append(("audit_below_target", message))
    return warnings


@composite("cascade", Cascade, check=check, finish=finish, main=rounds.ANSWERS)
def cascade(options: Cascade) -> Sequence[Child]:
    """Answer rows with a small model where it agrees with a large one."""
    values = options.model_dump(mode="json", include=set(Round.model_fields))
    return [
        Child("rows", 0, number, "cascade-round", values, rounds.NEXT if number else None, optional=bool(number))
        for number in range(rounds.ROUNDS)
    ]
