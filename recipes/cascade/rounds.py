"""The rounds of `cascade`: the input of the next round, and the answers of the last one.

The first round asks the small model about every row. The next ones ask the large model about a growing sample, in an
order that is fixed from the start, until a larger sample would not pay. The last one asks it about the rows that the
cut leaves to it, and about an audit of the others. What a round does follows from its rows alone. Rows that it does
not ask about go through it in bundles.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchyard import json_lines
from batchyard.comparing.shares import interval
from batchyard.recipes import Report, Results
from recipes.cascade import bounds
from recipes.cascade.bounds import CutDecision, Flags, Floats, Look, Tail
from recipes.cascade.options import STATE, Cascading
from recipes.measures import intervals
from recipes.reports import write_lines

NEXT, ANSWERS = "next.jsonl", "answers.jsonl"
ROUNDS = bounds.LOOKS + 2
"""The small model's round, one for each look, and the last one."""
NEW = ("answer", "answered_by", "confidence", "proxy_answer", "error", "tokens")
"""Columns that each row gets."""
SAMPLE, REST, AUDIT = "sample", "rest", "audit"
"""Why the large model is asked about a row."""
BUNDLE_ROWS, BUNDLE_BYTES = 1000, 1 << 18
BINS = 20
_NEVER = 1 << 53
"""The place in the order of a row without one: behind all others."""

Row = dict[str, Any]


def rows_of(results: Results) -> Iterator[Row]:
    """Stream the rows in the order of the input, with what all rounds so far have found.

    A row has `id`, `columns`, its place `order` in the order of sampling, `proxy` and, once it was asked, `large`.
    """
    for item in results.items():
        state = item.columns.get(STATE)
        if state is not None and "rows" in state:
            yield from state["rows"]
            continue
        columns = {name: value for name, value in item.columns.items() if name not in (STATE, "custom_id")}
        row = {"id": item.custom_id, "columns": columns}
        ended = {"error": dict(item.error or {"code": item.state, "message": None})}  # of a program that never ended
        if state is None:
            yield row | {"order": item.result.get("order", _NEVER), "proxy": item.result.get("proxy") or ended}
        else:
            large = {**(item.result.get("large") or ended), "why": state["why"]}
            yield row | {"order": state["order"], "proxy": state["proxy"], "large": large}


@dataclass
class Findings:
    """What is known about the rows after a round."""

    order: np.ndarray[Any, np.dtype[np.int64]]  # of sampling, for each row
    confidences: Floats  # of the small model, NaN where its answer is unusable
    why: np.ndarray[Any, np.dtype[np.str_]]  # why the large model was asked, empty where it was not
    errors: Flags  # the large model was asked, and has another answer or none
    wanted: Flags  # the large model was asked, and has the first label; without two targets none

    @classmethod
    def of(cls, results: Results, options: Cascading) -> Findings:
        order, confidences, why, errors, wanted = array("q"), array("d"), [], bytearray(), bytearray()
        label = options.labels[0] if options.filters else None
        for row in rows_of(results):
            confidence, large = row["proxy"].get("confidence"), row.get("large") or {}
            order.append(row["order"])
            confidences.append(math.nan if confidence is None else confidence)
            why.append(large.get("why", ""))
            errors.append(bool(large) and not large.get("equal"))
            wanted.append(label is not None and large.get("text") == label)
        flags = (np.frombuffer(each, bool) for each in (errors, wanted))
        return cls(np.array(order), np.array(confidences), np.array(why, "U6"), *flags)

    @property
    def rows(self) -> int:
        return len(self.order)

    def tails(self, options: Cascading) -> list[Tail]:
        """Return what the cuts may leave to the small model: by two targets, or by equal answers."""
        ranks = np.empty(self.rows, int)
        ranks[np.argsort(self.order, kind="stable")] = np.arange(self.rows)
        answered, sampled, risk = ~np.isnan(self.confidences), self.why == SAMPLE, 1 - options.confidence

        def tail(scores: Floats, errors: Flags, looks: list[Look]) -> Tail:
            pairs = [(int(ranks[row]), float(scores[row])) for row in np.flatnonzero(sampled & answered & errors)]
            return Tail(np.sort(scores[answered]), pairs, looks)

        if not options.filters:
            # Without the margin (1 - 0.93) * 100 would be 6 rows.
            budget = math.floor((1 - options.targets["agree"]) * self.rows + 1e-9)
            return [tail(self.confidences, self.errors, bounds.looks(self.rows, budget, risk))]
        shares = bounds.shares(**options.targets)
        sizes = bounds.sample_sizes(self.rows, max(shares), risk / 2)
        done, found = int(sampled.sum()), np.sort(ranks[sampled & self.wanted])
        # A later look is forecast with one wanted row more: none in a small sample is no reason to give up.
        wanted = [
            int(np.searchsorted(found, size)) if size <= done else (len(found) + 1) * size // max(done, 1)
            for size in sizes
        ]
        accepted, rejected = (
            [Look(size, most(few, share, risk / 2 / len(sizes))) for size, few in zip(sizes, wanted, strict=True)]
            for most, share in zip((bounds.most_unwanted, bounds.most_lost), shares, strict=True)
        )
        return [tail(self.confidences, ~self.wanted, accepted), tail(-self.confidences, self.wanted, rejected)]

    def decide(self, options: Cascading) -> CutDecision:
        return bounds.decide(self.tails(options), self.rows, int((self.why == SAMPLE).sum()))

    def asked_next(self, decision: CutDecision, options: Cascading) -> dict[int, str]:
        """Return the rows of the large model's next round, each with the reason; none if all is done."""
        if np.isin(self.why, (REST, AUDIT)).any():
            return {}
        order = np.argsort(self.order, kind="stable")
        if decision.sample:
            return {int(row): SAMPLE for row in order[: decision.sample] if not self.why[row]}
        decided = decision.accepts(self.confidences) | decision.rejects(self.confidences)
        left = [int(row) for row in order if not self.why[row]]
        # What follows in the order is a fresh sample: the cuts depend on the rows before.
        audit = [row for row in left if decided[row]][: options.audit]
        return {row: REST for row in left if not decided[row]} | dict.fromkeys(audit, AUDIT)


def finish(results: Results, options: Cascading) -> Report:
    """Write the input of the next round, or the answers after the last one."""
    findings = Findings.of(results, options)
    decision = findings.decide(options)
    asked = findings.asked_next(decision, options)
    if asked:
        write_lines(results, NEXT, _next_rows(results, asked))
        return Report({"rows": findings.rows, "next": dict(Counter(asked.values()))})
    totals = _Totals()
    with results.create(ANSWERS) as file:
        for row in rows_of(results):
            file.write(json_lines.line(totals.answered(row, decision, options)))
    return Report(_metrics(findings, decision, totals, options))


def _next_rows(results: Results, asked: Mapping[int, str]) -> Iterator[Row]:
    """Yield the rows that are asked, each by itself, and those between them in bundles."""
    bundle: list[Row] = []
    size = 0

    def bundled(number: int) -> Row:
        return {"custom_id": f"{STATE}-{number}", "prompt": "-", STATE: {"rows": bundle}}

    number = 0
    for number, row in enumerate(rows_of(results)):
        why = asked.get(number)
        if bundle and (why is not None or len(bundle) >= BUNDLE_ROWS or size >= BUNDLE_BYTES):
            yield bundled(number)
            bundle, size = [], 0
        if why is not None:
            state = {"order": row["order"], "proxy": row["proxy"], "why": why}
            yield {**row["columns"], "custom_id": row["id"], STATE: state}
        else:
            bundle.append(row)
            size += len(json_lines.dumps(row))
    if bundle:
        yield bundled(number + 1)


class _Totals:
    """Sums over all rows, gathered as their answers are written."""

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()
        self.tokens = {"proxy": [0, 0, 0], "large": [0, 0, 0]}  # requests, input tokens and output tokens
        self.sampled = [0, 0, 0]  # the same of the sample alone
        self.right: Counter[tuple[str, bool]] = Counter()  # whose answers to rows with a known one are right
        self.known: Counter[tuple[bool, bool]] = Counter()  # whether a row is kept, and is known to be wanted

    def answered(self, row: Row, decision: CutDecision, options: Cascading) -> Row:
        """Return a row as the file of answers has it."""
        proxy, large = row["proxy"], row.get("large")
        for name, answer in (("proxy", proxy), ("large", large)):
            if answer is not None:
                _add(self.tokens[name], answer)
        if large is not None and large["why"] == SAMPLE:
            _add(self.sampled, large)
        confidence = proxy.get("confidence")
        if large is None:
            answer, answered_by, error = proxy["text"], options.proxy, None
            if options.filters:
                answer = options.labels[0 if confidence > decision.upper else 1]
        else:
            answer, answered_by, error = large.get("text"), options.model, large.get("error")
        self.answers["failed" if answer is None else "proxy" if large is None else "large"] += 1
        if options.filters:
            self.answers["wanted"] += answer == options.labels[0]
            self.answers["no_label"] += answer not in (None, *options.labels)
        self._compare(row, answer, large is None, options)
        tokens = sum(sum(each.get("tokens") or ()) for each in (proxy, large or {}))
        new = (answer, None if answer is None else answered_by, confidence, proxy.get("text"), error, tokens)
        return {"custom_id": row["id"], **row["columns"], **dict(zip(NEW, new, strict=True))}

    def _compare(self, row: Row, answer: str | None, is_proxy: bool, options: Cascading) -> None:
        """Compare the answers to a row with the known one, if there is one."""
        known, large = options.known(row["columns"]), row.get("large") or {}
        if known is None:
            return

        def is_right(text: str | None, source: Mapping[str, Any]) -> bool:
            if options.filters:
                return text is not None and (text == options.labels[0]) == (known == options.labels[0])
            return bool(source.get("right"))

        self.right["all", is_right(answer, row["proxy"] if is_proxy else large)] += 1
        self.right["proxy", is_right(row["proxy"].get("text"), row["proxy"])] += 1
        if large.get("why") == SAMPLE:
            self.right["large", is_right(large.get("text"), large)] += 1
        if options.filters:
            self.known[answer == options.labels[0], known == options.labels[0]] += 1

    def truth(self, options: Cascading) -> dict[str, Any]:
        """Return how many of the answers are right: of all, and those of either model."""
        shares = {
            name: intervals.share(self.right[name, True], self.right[name, True] + self.right[name, False])
            for name in ("all", "proxy", "large")
        }
        if options.filters:
            right = self.known[True, True]
            shares["precision"] = intervals.share(right, right + self.known[True, False])
            shares["recall"] = intervals.share(right, right + self.known[False, True])
        return shares


def _add(sums: list[int], answer: Mapping[str, Any]) -> None:
    sums[0] += "tokens" in answer  # scores of a column ask nobody
    for place, tokens in enumerate(answer.get("tokens") or (0, 0), 1):
        sums[place] += tokens


def _metrics(findings: Findings, decision: CutDecision, totals: _Totals, options: Cascading) -> dict[str, Any]:
    rows, answered = findings.rows, ~np.isnan(findings.confidences)
    accepted, rejected = decision.accepts(findings.confidences), decision.rejects(findings.confidences)
    sampled, decided = findings.why == SAMPLE, accepted | rejected
    wrong = np.where(accepted, ~findings.wanted, findings.wanted) if options.filters else findings.errors
    size = int(sampled.sum())
    names = ("requests", "input_tokens", "output_tokens")
    # Of a sample of all rows each row's tokens are a fair share; without one all rows were asked.
    alone = [round(value * rows / size) for value in totals.sampled] if size else totals.tokens["large"]
    used = sum(totals.tokens["large"][1:])
    agreeing = sampled & answered & ~findings.errors
    metrics: dict[str, Any] = {
        "rows": rows,
        **{name: totals.answers[name] for name in ("proxy", "large", "failed")},
        "certified": bool(decided.any()),
        "threshold": float(findings.confidences[accepted].min()) if accepted.any() else None,
        "sampled": size,
        "sampled_errors": int((decided & sampled & wrong).sum()),
        "looks": len(findings.tails(options)[0].looks),
        "unusable": int((~answered).sum()),
        "proxy_agreement": intervals.share(int(agreeing.sum()), size),
        "tokens": {name: dict(zip(names, values, strict=True)) for name, values in totals.tokens.items()},
        "large_alone": dict(zip(names, alone, strict=True)),
        "large_share": used / sum(alone[1:]) if sum(alone[1:]) else None,
        "audit": _audit(findings, decided, wrong),
        "confidences": np.histogram(findings.confidences[answered], BINS, (0, 1))[0].tolist(),
    }
    if options.truth is not None:
        metrics["truth"] = totals.truth(options)
    if options.filters:
        metrics |= {
            **{name: totals.answers[name] for name in ("wanted", "no_label")},
            "rejected_up_to": float(findings.confidences[rejected].max()) if rejected.any() else None,
            "sampled_wanted": int((sampled & findings.wanted).sum()),
        }
        metrics["audit"]["intervals"] |= _audited_targets(findings, accepted, rejected, totals.answers["wanted"])
    return metrics


def _audit(findings: Findings, decided: Flags, wrong: Flags) -> dict[str, Any]:
    """Return the audit of the small model's rows, and the agreement of all rows with its answers corrected."""
    checked = findings.why == AUDIT
    audited, size, errors = (
        int((rows & (findings.why != SAMPLE)).sum()) for rows in (decided, checked, checked & wrong)
    )
    if not size:
        return {"rows": 0, "errors": 0} | intervals.document(None, 0, None)
    low, high = interval(audited, size, errors)
    mean = 1 - errors / size * (audited - size) / findings.rows
    ends = (1 - (high - errors) / findings.rows, 1 - (low - errors) / findings.rows)
    return {"rows": size, "errors": errors} | intervals.document(mean, size, ends)


def _audited_targets(findings: Findings, accepted: Flags, rejected: Flags, wanted: int) -> dict[str, Any]:
    """Return the intervals of precision and recall, of 95 % together, by the audit. `wanted`: rows of the output."""
    checked = findings.why == AUDIT

    def left(decided: Flags, wrong: Flags) -> tuple[int, int]:
        """Return the least and the most wrong rows, without those that the audit has found."""
        rows = decided & (findings.why != SAMPLE)
        found = int((rows & checked & wrong).sum())
        low, high = interval(int(rows.sum()), int((rows & checked).sum()), found, 0.025)
        return low - found, high - found

    if not checked.any() or not wanted:
        return {}
    extra, lost = left(accepted, ~findings.wanted), left(rejected, findings.wanted)
    least, most = (wanted - rows for rows in reversed(extra))  # right rows of the output
    return {
        "precision": [least / wanted, most / wanted],
        "recall": [least / max(least + lost[1], 1), most / max(most + lost[0], 1)],
    }
