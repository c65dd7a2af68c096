"""The rounds of `cascade`: the input of the next round, and the answers of the last one.

The first round asks the small model about every row. The next ones ask the large model about a growing sample, in an
order that is fixed from the start, until a larger sample would not pay. The first rows of this order train the
classifier of an embedding model, in a round of their own. The last round asks about the rows that the cut leaves to
the large model, and about an audit of the others. What a round does follows from its rows alone. Rows that it does not
ask about go through it in bundles.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from batchyard import json_lines
from batchyard.comparing.shares import interval
from batchyard.recipes import Report, Results
from recipes.cascade import bounds
from recipes.cascade.bounds import CutDecision, Flags, Floats, Look, Tail
from recipes.cascade.classifier import Classifier
from recipes.cascade.options import STATE, Cascading
from recipes.measures import intervals
from recipes.reports import write_lines

NEXT, ANSWERS = "next.jsonl", "answers.jsonl"
ROUNDS = bounds.LOOKS + 2
"""The small model's round, one for each look, and the last one; an embedding model adds that of training."""
NEW = ("answer", "answered_by", "confidence", "proxy_answer", "error", "tokens")
"""Columns that each row gets."""
TRAINING, SAMPLE, REST, AUDIT = "training", "sample", "rest", "audit"
"""Why the large model is asked about a row."""
TRAINED = 0.05
"""Share of the rows that train a classifier of embeddings, within these limits and at most a quarter."""
FEWEST, MOST = 100, 2000
BUNDLE_ROWS, BUNDLE_BYTES = 1000, 1 << 18
BINS = 20
_NEVER = 1 << 53
"""The place in the order of a row without one: behind all others."""

Row = dict[str, Any]


def rows_of(results: Results, options: Cascading, classifier: Classifier | None = None) -> Iterator[Row]:
    """Stream the rows in the order of the input, with what all rounds so far have found.

    A classifier turns embeddings into answers.

    A row has `id`, `columns`, its place `order` in the order of sampling, the small models' answers `proxies` and, once
    it was asked, `large`.
    """
    for row in _carried(results, options):
        proxies = row["proxies"]
        if classifier is not None and "vector" in proxies[-1]:
            row["proxies"] = [*proxies[:-1], _classified(row, classifier, options)]
        yield row


def _classified(row: Row, classifier: Classifier, options: Cascading) -> Row:
    """Return what is kept of a row's embedding: the label that follows from it, with its probability."""
    kept = {name: value for name, value in row["proxies"][-1].items() if name != "vector"}
    probabilities = classifier.probabilities(row["proxies"][-1]["vector"])
    best = max(range(len(probabilities)), key=probabilities.__getitem__)
    known = options.known(row["columns"])
    right = {} if known is None else {"right": options.labels[best] == known}
    return {**kept, **right, "text": options.labels[best], "confidence": probabilities[0 if options.filters else best]}


def _carried(results: Results, options: Cascading) -> Iterator[Row]:
    for item in results.items():
        state = item.columns.get(STATE)
        if state is not None and "rows" in state:
            yield from map(json_lines.loads, state["rows"].split("\n"))
            continue
        columns = {name: value for name, value in item.columns.items() if name not in (STATE, "custom_id")}
        row = {"id": item.custom_id, "columns": columns}
        ended = {"error": dict(item.error or {"code": item.state, "message": None})}  # of a program that never ended
        if state is None:
            yield row | {
                "order": item.result.get("order", _NEVER),
                "proxies": item.result.get("proxies") or [ended] * len(options.proxies),
            }
        else:
            large = {**(item.result.get("large") or ended), "why": state["why"], "chosen": state["chosen"]}
            yield row | {"order": state["order"], "proxies": state["proxies"], "large": large}


@dataclass
class Findings:
    """What is known about the rows, by one small model, after a round."""

    order: np.ndarray[Any, np.dtype[np.int64]]  # of sampling, for each row
    confidences: Floats  # of the small model, NaN where its answer is unusable
    why: np.ndarray[Any, np.dtype[np.str_]]  # why the large model was asked, empty where it was not
    errors: Flags  # the large model was asked, and has another answer or none
    wanted: Flags  # the large model was asked, and has the first label; without two targets none
    chosen: Mapping[str, Any] = field(default_factory=dict)  # by an earlier round, see `_decided`
    place: int = 0  # of the small model

    @classmethod
    def of(cls, rows: Iterable[Row], options: Cascading, place: int) -> Findings:
        order, confidences, why, errors, wanted = array("q"), array("d"), [], bytearray(), bytearray()
        chosen: Mapping[str, Any] = {}
        label = options.labels[0] if options.filters else None
        for row in rows:
            confidence, large = row["proxies"][place].get("confidence"), row.get("large") or {}
            if large.get("why") == TRAINING:
                confidence = None  # the guarantee is about the other rows
            order.append(row["order"])
            confidences.append(math.nan if confidence is None else confidence)
            why.append(large.get("why", ""))
            equal = large.get("equal")
            errors.append(bool(large) and not (equal and equal[place]))
            wanted.append(label is not None and large.get("text") == label)
            chosen = large.get("chosen") or chosen
        flags = np.frombuffer(errors, bool), np.frombuffer(wanted, bool)
        return cls(np.array(order), np.array(confidences), np.array(why, "U8"), *flags, chosen, place)

    @property
    def rows(self) -> int:
        return len(self.order)

    def in_order(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the rows in the order of sampling."""
        return np.argsort(self.order, kind="stable")

    @property
    def trained(self) -> int:
        """The number of rows that have trained a classifier. They come first in the order of sampling."""
        return int((self.why == TRAINING).sum())

    def tails(self, options: Cascading, agree: float | None = None) -> list[Tail]:
        """Return what the cuts may leave to the small model: by two targets, or by equal answers.

        `agree`: one of `options.range`; by default the highest.
        """
        ranks = np.empty(self.rows, int)
        ranks[self.in_order()] = np.arange(self.rows) - self.trained
        rows = self.rows - self.trained
        answered, sampled, risk = ~np.isnan(self.confidences), self.why == SAMPLE, options.risk

        def tail(scores: Floats, errors: Flags, looks: list[Look]) -> Tail:
            pairs = [(int(ranks[row]), float(scores[row])) for row in np.flatnonzero(sampled & answered & errors)]
            return Tail(np.sort(scores[answered]), pairs, looks)

        if not options.filters:
            # Without the margin (1 - 0.93) * 100 would be 6 rows.
            budgets = {each: math.floor((1 - each) * self.rows + 1e-9) for each in options.range}
            # All targets have the looks of the highest one that so many rows can certify: no more than LOOKS.
            looks = next(filter(None, (bounds.looks(rows, each, risk) for each in budgets.values())), [])
            if agree is not None and options.by is not None:
                looks = bounds.with_budget(looks, rows, budgets[agree], risk)
            return [tail(self.confidences, self.errors, looks)]
        shares = bounds.shares(**options.targets)
        sizes = bounds.sample_sizes(rows, max(shares), risk / 2)
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

    def decide(self, options: Cascading, agree: float | None = None) -> CutDecision:
        tails, sampled = self.tails(options, agree), int((self.why == SAMPLE).sum())
        return bounds.decide(tails, self.rows - self.trained, sampled)

    def asked_next(self, decision: CutDecision, options: Cascading) -> dict[int, str]:
        """Return the rows of the large model's next round, each with the reason; none if all is done."""
        if np.isin(self.why, (REST, AUDIT)).any():
            return {}
        is_new = self.why == ""
        order = self.in_order()
        if decision.sample:
            first = order[: self.trained + decision.sample]
            return dict.fromkeys(first[is_new[first]].tolist(), SAMPLE)
        left = order[is_new[order]]
        decided = (decision.accepts(self.confidences) | decision.rejects(self.confidences))[left]
        # What follows in the order is a fresh sample: the cuts depend on the rows before.
        audit = left[decided][: options.audit]
        return dict.fromkeys(left[~decided].tolist(), REST) | dict.fromkeys(audit.tolist(), AUDIT)


def finish(results: Results, options: Cascading) -> Report:
    """Write the input of the next round, or the answers after the last one."""
    is_untrained, classifier = _training(results, options)
    rows = partial(rows_of, results, options, classifier)
    asked: dict[int, str] = {}
    chosen: Mapping[str, Any] = {}
    if is_untrained:
        findings = Findings.of(rows(), options, 0)
        asked = dict.fromkeys(findings.in_order()[: trained_rows(findings.rows)], TRAINING)
    if not asked:
        findings, decision, chosen = _decided(rows, results, options)
        asked = findings.asked_next(decision, options)
    if asked:
        write_lines(results, NEXT, _next_rows(rows(), asked, chosen))
        return Report({"rows": findings.rows, "next": dict(Counter(asked.values())), **chosen})
    totals = _Totals()
    with results.create(ANSWERS) as file:
        for row in rows():
            file.write(json_lines.line(totals.answered(row, findings.place, decision, options)))
    return Report({**chosen, **_metrics(findings, decision, totals, options)})


def trained_rows(rows: int) -> int:
    """Return how many rows train a classifier of embeddings; 0 of fewer than 4 rows."""
    return min(max(round(TRAINED * rows), FEWEST), MOST, rows // 4)


def _training(results: Results, options: Cascading) -> tuple[bool, Classifier | None]:
    """Return whether a classifier lacks rows to learn from, and the classifier that this round's rows have trained."""
    vectors, labels, is_asked, has_vectors = [], [], False, False
    for row in _carried(results, options) if options.embedding is not None else ():
        vector, large = row["proxies"][-1].get("vector"), row.get("large") or {}
        has_vectors, is_asked = has_vectors or vector is not None, is_asked or bool(large)
        if vector is not None and large.get("why") == TRAINING and large.get("text") in options.labels:
            vectors.append(vector)
            labels.append(options.labels.index(large["text"]))
    classifier = Classifier.trained(vectors, labels, len(options.labels)) if vectors else None
    return has_vectors and not is_asked, classifier


def _decided(
    rows: Callable[[], Iterable[Row]], results: Results, options: Cascading
) -> tuple[Findings, CutDecision, Mapping[str, Any]]:
    """Return what is known of the best small model, what follows, and what was chosen.

    Of a range it is the highest target that the deadline allows, and of several small models the one that is forecast
    to answer most rows.
    """
    found = [Findings.of(rows(), options, place) for place in range(len(options.proxies))]
    if chosen := found[0].chosen:
        findings = found[options.proxies.index(chosen.get("chosen_proxy", options.proxies[0]))]
        return findings, findings.decide(options, chosen.get("agree")), chosen
    seconds, now = (0.0, 0.0) if options.by is None else _pace(results)  # it reads all rows
    for agree in options.range:
        decisions = [each.decide(options, agree) for each in found]
        place = max(range(len(found)), key=lambda place: (decisions[place].saved, decisions[place].sample))
        findings, decision = found[place], decisions[place]
        left = findings.rows - int(np.count_nonzero(findings.why)) - decision.saved
        eta = seconds * (left + min(options.audit, decision.saved))
        is_known = decision.sample or findings.why.any()  # without a sample of the large model nobody knows its pace
        if options.by is not None and is_known and now + eta <= options.by.timestamp():
            break
    several = {"chosen_proxy": options.proxies[place]} if len(found) > 1 else {}
    late = {} if options.by is None else {"agree": agree, "eta_seconds": eta, "forecast_at": now + eta}
    return findings, decision, {} if decision.sample else {**late, **several}


def _pace(results: Results) -> tuple[float, float]:
    """Return the seconds per row of the large model in this round, 0 if it has none, and when the round ended."""
    rows, began, ended, last = 0, math.inf, 0.0, 0.0
    for item in results.items():
        last = max(last, item.ended_at or 0)
        if item.started_at and item.ended_at and "why" in (item.columns.get(STATE) or {}):
            rows, began, ended = rows + 1, min(began, item.started_at), max(ended, item.ended_at)
    return (ended - began) / rows if rows else 0.0, last


def _next_rows(rows: Iterable[Row], asked: Mapping[int, str], chosen: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows that are asked, each by itself, and those between them in bundles."""
    bundle: list[bytes] = []
    size = 0

    def bundled(number: int) -> Row:
        # As one text: all bundles of a round may be in memory at once.
        return {"custom_id": f"{STATE}-{number}", "prompt": "-", STATE: {"rows": b"\n".join(bundle).decode()}}

    number = 0
    for number, row in enumerate(rows):
        why = asked.get(number)
        if bundle and (why is not None or len(bundle) >= BUNDLE_ROWS or size >= BUNDLE_BYTES):
            yield bundled(number)
            bundle, size = [], 0
        if why is not None:
            state = {"order": row["order"], "proxies": row["proxies"], "why": why, "chosen": chosen}
            yield {**row["columns"], "custom_id": row["id"], STATE: state}
        else:
            bundle.append(json_lines.dumps(row))
            size += len(bundle[-1])
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

    def answered(self, row: Row, place: int, decision: CutDecision, options: Cascading) -> Row:
        """Return a row as the file of answers has it. `place`: of the small model that decides."""
        proxy, large = row["proxies"][place], row.get("large")
        asked = [*(("proxy", answer) for answer in row["proxies"]), *([("large", large)] if large else [])]
        for name, answer in asked:
            _add(self.tokens[name], answer)
        if large is not None and large["why"] == SAMPLE:
            _add(self.sampled, large)
        confidence = proxy.get("confidence")
        if large is None:
            answer, answered_by, error = proxy["text"], options.proxies[place], None
            if options.filters:
                answer = options.labels[0 if confidence > decision.upper else 1]
        else:
            answer, answered_by, error = large.get("text"), options.model, large.get("error")
        self.answers["failed" if answer is None else "proxy" if large is None else "large"] += 1
        if options.filters:
            self.answers["wanted"] += answer == options.labels[0]
            self.answers["no_label"] += answer not in (None, *options.labels)
        self._compare(row, proxy, answer, options)
        tokens = sum(sum(each.get("tokens") or ()) for _, each in asked)
        new = (answer, None if answer is None else answered_by, confidence, proxy.get("text"), error, tokens)
        return {"custom_id": row["id"], **row["columns"], **dict(zip(NEW, new, strict=True))}

    def _compare(self, row: Row, proxy: Mapping[str, Any], answer: str | None, options: Cascading) -> None:
        """Compare the answers to a row with the known one, if there is one."""
        known, large = options.known(row["columns"]), row.get("large") or {}
        if known is None:
            return

        def is_right(text: str | None, source: Mapping[str, Any]) -> bool:
            if options.filters:
                return text is not None and (text == options.labels[0]) == (known == options.labels[0])
            return bool(source.get("right"))

        self.right["all", is_right(answer, large or proxy)] += 1
        self.right["proxy", is_right(proxy.get("text"), proxy)] += 1
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
        "unusable": int((~answered).sum()) - findings.trained,
        **({} if options.embedding is None else {"trained": findings.trained}),
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
