"""Recipe `cascade`: rounds until a small model's answers are certified, and the answers of both models."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from batchyard.recipes import Block, Child, Histogram, Report, Results, Table, composite
from batchyard.wording import count, quoted
from recipes.cascade import rounds
from recipes.cascade.options import Cascade, Round, check
from recipes.reports import interval, number


def finish(results: Results, options: Cascade) -> Report:
    """Copy the answers of the last round, and report."""
    made = [item for item in results.items() if item.result.get("job_id")]
    last = next((item for item in reversed(made) if item.state == "completed"), None)
    path = None if last is None else results.of_child(str(last.result["job_id"]), rounds.ANSWERS)
    with results.create(rounds.ANSWERS) as file:
        if path is not None:
            with path.open("rb") as answers:
                shutil.copyfileobj(answers, file)
    if last is None or path is None:
        reason = next((item.error["message"].removesuffix(".") for item in results.items() if item.error), "it ended")
        message = f"A round has not completed: {reason}. A new job reuses the completed rounds."
        return Report(warnings=[("unfinished", message)])
    metrics = dict(last.result["metrics"])
    targets = {**options.targets, "confidence": options.confidence, "rounds": len(made)}
    if options.by is not None:
        metrics |= {"range": [options.lowest_agree, targets["agree"]], "due_at": options.by.timestamp()}
        metrics["ended_at"] = last.ended_at or 0
    return Report(targets | metrics, _view(metrics, options), list(_warnings(metrics, options)))


def _warnings(metrics: Mapping[str, Any], options: Cascade) -> Iterator[tuple[str, str]]:
    targets = {name: metrics.get(name, target) for name, target in options.targets.items()}
    if metrics.get("ended_at", 0) > metrics.get("due_at", math.inf):
        yield "late", f"The last answer came at {_time(metrics['ended_at'])}, after {_time(metrics['due_at'])}."
    if not metrics["certified"]:
        if not metrics["looks"]:
            lower = ", ".join(f"`{name}`" for name in options.targets)
            reason = f"too few rows ({metrics['rows']:,}) for this target; lower {lower} or `confidence`"
        elif metrics["unusable"] + metrics.get("trained", 0) == metrics["rows"]:
            missing = "its engine has to return log-probabilities"
            if options.scores is not None:
                missing = "its column of scores is empty"
            elif not options.chat_proxies:
                missing = "its classifier needs embeddings of rows that the large model has answered with a label"
            elif options.labels:
                missing += ", and its answers have to be labels"
            reason = f"the small model gave no answer with a confidence; {missing}"
        elif options.filters and not metrics["sampled_wanted"]:
            reason = f"no row of the sample has the answer {quoted(options.labels[0])}"
        else:
            reason = "at every threshold the small model differs too often, or its confidences are equal"
        yield "not_certified", f"The large model was asked about every row: {reason}."
    if metrics["unusable"]:
        message = (
            f"The small model has no usable answer for {count(metrics['unusable'], 'row')}; the large model was asked."
        )
        yield "proxy_unusable", message
    if metrics["failed"]:
        message = f"The large model failed on {count(metrics['failed'], 'row')}; the column `error` has the reasons."
        yield "rows_failed", message
    if options.truth is not None and not metrics["truth"]["all"]["n"]:
        yield "no_truth", "No row has a known answer: look at the column of `truth`."
    if metrics.get("no_label"):
        wanted, other = map(quoted, options.labels)
        message = (
            f"{metrics['no_label']:,} answers are neither {wanted} nor {other} and count as {other}; ask for one of "
            "these words."
        )
        yield "no_label", message
    for name, least in targets.items():
        ends = metrics["audit"]["intervals"].get("mean" if name == "agree" else name)
        if ends is not None and ends[1] < least:
            message = f"According to the audit, `{name}` is {interval(ends)}: this run has missed its target."
            yield "audit_below_target", message


def _view(metrics: Mapping[str, Any], options: Cascade) -> list[Block]:
    tokens, alone, audit = metrics["tokens"], metrics["large_alone"], metrics["audit"]
    columns = ["model", "rows answered", "requests", "input tokens", "output tokens"]
    proxy = ", ".join(options.proxies)
    proxy = f"{metrics['chosen_proxy']} of {proxy}" if "chosen_proxy" in metrics else proxy
    models = [
        [proxy, metrics["proxy"], *tokens["proxy"].values()],
        [options.model, metrics["large"], *tokens["large"].values()],
        [f"{options.model} alone (estimated)", metrics["rows"], *alone.values()],
    ]
    sure = f"with probability {options.confidence:g}"
    if options.filters:
        target = f"precision {options.precision:g} and recall {options.recall:g}, {sure}"
        label = quoted(options.labels[0])
        facts = [
            ["certified", target if metrics["certified"] else "nothing: the large model answered all rows"],
            [f"rows with {label}", number(metrics["wanted"])],
            [f"small model's {label}: minimum probability of {label}", number(metrics["threshold"])],
            [f"small model's other rows: maximum probability of {label}", number(metrics["rejected_up_to"])],
            *([f"{name} by the audit", interval(audit["intervals"].get(name))] for name in options.targets),
        ]
    else:
        agree = metrics.get("agree", options.targets["agree"])
        target = f"{agree:g} of all rows {sure}"
        facts = [
            ["certified agreement", target if metrics["certified"] else "none: the large model answered all rows"],
            ["minimum confidence of the small model's answers", number(metrics["threshold"])],
        ]
        if options.by is not None:
            times = [_time(metrics[name]) for name in ("due_at", "forecast_at", "ended_at")]
            chosen = "{:g} of {:g} to {:g}".format(agree, *metrics["range"])
            facts += [["target chosen for the deadline", chosen], ["deadline, forecast, end", ", ".join(times)]]
    facts += [
        *([["rows that trained the classifier", metrics["trained"]]] if "trained" in metrics else []),
        ["rows in the sample", metrics["sampled"]],
        ["small model's agreement in the sample", _mean(metrics["proxy_agreement"])],
        ["agreement of all rows by the audit", _mean(audit)],
        ["large model's tokens, as a share of those it would need alone", number(metrics["large_share"])],
    ]
    if options.truth is not None:
        names = {"all": "all answers", "proxy": "the small model's", "large": "the large model's, in the sample"}
        facts += [
            [f"{names.get(name, name)}: by {options.truth}", _mean(share)] for name, share in metrics["truth"].items()
        ]
    edges = [f"{bin_ / rounds.BINS:g} to {(bin_ + 1) / rounds.BINS:g}" for bin_ in range(rounds.BINS)]
    return [
        Table(title="Models", columns=columns, rows=models),
        Table(title="Agreement", columns=["", "value"], rows=facts),
        Histogram(title="Confidence of the small model", labels=[*edges], values=metrics["confidences"]),
    ]


def _time(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _mean(share: Mapping[str, Any]) -> str:
    ends = share["intervals"].get("mean")
    return number(share["mean"]) + ("" if ends is None else f" ({interval(ends)}), n = {share['n']}")


@composite("cascade", Cascade, check=check, finish=finish, main=rounds.ANSWERS)
def cascade(options: Cascade) -> Sequence[Child]:
    """Answer rows with a small model where it agrees with a large one."""
    values = options.model_dump(mode="json", include=set(Round.model_fields))
    return [
        Child("rows", 0, number, "cascade-round", values, rounds.NEXT if number else None, optional=bool(number))
        for number in range(rounds.ROUNDS + (options.embedding is not None))
    ]
