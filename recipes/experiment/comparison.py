"""The comparison of an experiment's variants with its baseline, and what becomes of its expectations."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from batchyard.wording import quoted
from recipes.experiment import verdicts
from recipes.experiment.expressions import parse
from recipes.experiment.values import MOST_COLUMNS, MOST_LEFT_OUT, ComparedChild, read
from recipes.experiment.variants import Variant, differences, estimates, is_paired
from recipes.experiment.verdicts import HELD, NOT_DECIDABLE
from recipes.measures import intervals, paired
from recipes.measures.paired import Difference

OF_CHILD = ("key", "variant", "repeat", "round", "job_id", "status", "error", "config_sha256")
"""What the comparison repeats of a child."""
OF_MANIFEST = (
    *("recipe", "recipe_sha256", "input_sha256", "items_sha256", "work_sha256", "simulated", "batchyard", "options"),
    *("seed", "models", "request_counts", "usage", "created_at", "started_at", "ended_at"),
)
"""What the comparison repeats of a child's manifest."""


def compare(
    children: Sequence[ComparedChild], baseline: str | None, expect: Sequence[str], passes: Sequence[str]
) -> dict[str, Any]:
    """Compare children that have ended, and return comparison.json.

    Args:
        baseline: the variant that the others are compared with; None for no differences.
        expect, passes: expressions, see `expressions`. One that cannot be read is not decidable.
    """
    last = max((child.round for child in children), default=0)
    completed = [child for child in children if child.status == "completed"]
    with tempfile.TemporaryFile(prefix="batchyard-comparison-") as file:
        variants = {}
        for name in dict.fromkeys(child.variant for child in children):
            compared = [child for child in completed if child.variant == name and child.round == last]
            variants[name] = Variant(name, compared, [read(child, file) for child in compared])
        jobs = {name: [child.job_id for child in variant.children] for name, variant in variants.items()}
        failed = len(children) - len(completed)
        judged = {kind: list(_judge(texts, variants)) for kind, texts in (("expect", expect), ("pass", passes))}
        return {
            "baseline": baseline,
            "passed": all(verdict["verdict"] == HELD for verdict in judged["pass"]) if passes else None,
            "method": {"interval_percent": 95, "draws": intervals.DRAWS, "seed": intervals.SEED},
            "counts": {"children": len(children), "completed": len(completed), "failed": failed},
            "warnings": [_left_out(variant) for variant in variants.values() if variant.left_out],
            "round": last,
            "children": [_child(child) for child in children],
            **judged,
            "variants": {
                name: {"jobs": jobs[name], "latency": variant.latency, "errors": variant.errors}
                for name, variant in variants.items()
            },
            "metrics": _metrics(variants, baseline),
            "rounds": _rounds(completed, list(variants)) if last else [],
        }


def _left_out(variant: Variant) -> dict[str, str]:
    names = variant.left_out
    number = f"{len(names):,}{' or more' if len(names) >= MOST_LEFT_OUT else ''}"
    message = (
        f"Variant '{variant.name}' has more than {MOST_COLUMNS} metrics by item. {number} are not compared; "
        f"the first of them is {quoted(names[0])}."
    )
    return {"code": "metrics_left_out", "message": message}


def _child(child: ComparedChild) -> dict[str, Any]:
    manifest = {name: child.manifest[name] for name in OF_MANIFEST if name in child.manifest}
    started, ended = manifest.get("started_at"), manifest.get("ended_at")
    return {
        **{name: getattr(child, name) for name in OF_CHILD},
        **manifest,
        "seconds": ended - started if isinstance(started, int | float) and isinstance(ended, int | float) else None,
    }


def _judge(texts: Iterable[str], variants: Mapping[str, Variant]) -> Iterator[dict[str, Any]]:
    for text in texts:
        try:
            expressions = parse(text, list(variants))
        except ValueError as error:
            yield verdicts.outcome((text, text), NOT_DECIDABLE, reason=str(error))
            continue
        if not expressions:
            yield verdicts.outcome((text, text), NOT_DECIDABLE, reason="there is no other variant")
        for expression in expressions:
            yield verdicts.judge(expression, variants)


def _metrics(variants: Mapping[str, Variant], baseline: str | None) -> dict[str, Any]:
    """Return each metric of each variant, and its difference from the baseline's. First those with values by item."""
    known = {name: estimates(variant, variant.by_item) for name, variant in variants.items()}
    by_item = list(dict.fromkeys(metric for each in known.values() for metric in each))
    base = variants.get(baseline) if baseline is not None else None
    compared: dict[str, dict[str, Difference]] = {}
    for name, variant in variants.items():
        if base is not None and variant is not base and is_paired(variant, base):
            shared = [metric for metric in variant.by_item if metric in base.by_item]
            found = differences([(variant, metric, base, metric) for metric in shared])
            compared[name] = {metric: each for metric, each in zip(shared, found, strict=True) if each.n}
    document: dict[str, Any] = {}
    for metric in by_item:
        by_variant = {name: each[metric] for name, each in compared.items() if metric in each}
        p = dict(zip(by_variant, paired.holm([each.p for each in by_variant.values()]), strict=True))
        entries: dict[str, dict[str, Any]] = {}
        for name, estimate in ((name, each[metric]) for name, each in known.items() if metric in each):
            entries[name] = {
                "n": estimate.n,
                "mean": estimate.mean,
                "interval": estimate.interval and list(estimate.interval),
            }
            if base is not None and name != baseline:
                entries[name]["difference"] = _difference(by_variant.get(name), p.get(name), base, variants[name])
        document[metric] = {"by_item": True, "variants": entries}
    for metric in dict.fromkeys(metric for variant in variants.values() for metric in variant.as_a_whole):
        if metric not in document:
            values = {name: each.as_a_whole[metric] for name, each in variants.items() if metric in each.as_a_whole}
            entries = {name: {"n": None, "mean": value, "interval": None} for name, value in values.items()}
            document[metric] = {"by_item": False, "variants": entries}
    return document


def _difference(difference: Difference | None, p: float | None, base: Variant, variant: Variant) -> dict[str, Any]:
    if difference is None:
        reason = f"'{base.name}' has no values of it"
        if not base.children:
            reason = f"no child of '{base.name}' has completed"
        elif not is_paired(variant, base):
            reason = f"'{base.name}' has another input"
        return {"n": 0, "verdict": NOT_DECIDABLE, "words": f"{NOT_DECIDABLE}: {reason}"}
    side = paired.side(difference.interval, p)
    verdict = {1: "higher", -1: "lower", 0: NOT_DECIDABLE}[side]
    return {
        "n": difference.n,
        "mean": difference.mean,
        "interval": difference.interval and list(difference.interval),
        "test": difference.test,
        "p": difference.p,
        "p_holm": p,
        "verdict": verdict,
        "words": f"{verdict} than {base.name}" if side else f"{verdict} at n = {difference.n}",
    }


def _rounds(completed: Sequence[ComparedChild], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the metrics of each variant in each round, by metrics.json."""
    rounds = []
    for number in sorted({child.round for child in completed}):
        for name in names:
            ran = [child for child in completed if (child.variant, child.round) == (name, number)]
            if ran:
                jobs, metrics = [child.job_id for child in ran], Variant(name, ran, []).as_a_whole
                rounds.append({"round": number, "variant": name, "jobs": jobs, "metrics": metrics})
    return rounds
