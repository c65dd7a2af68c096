"""`batchyard.match`: the pairs of rows of two tables to which a model says yes."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import click
import numpy as np
from numpy.typing import NDArray

from batchyard.client import asking, frames
from batchyard.client.api import ApiClient
from batchyard.client.embed import embed as embedded
from batchyard.client.filter import DEFAULT, YES, filter
from batchyard.client.frames import Column, Frame, Kind
from batchyard.comparing import shares
from batchyard.endpoints.catalog import CHAT, EMBEDDINGS
from batchyard.errors import ConfigurationError

SIDES = ("left.", "right.")
"""Prefixes of the two tables' columns."""
SIMILARITY = "similarity"
TOP, SAMPLE = 5, 1000
BLOCK = 1 << 23
"""Similarities that are in memory at once."""

Numbers = NDArray[np.int64]
Matrix = NDArray[np.float32]


def match(
    left: Any,
    right: Any,
    template: str,
    *,
    model: str,
    embed: str | None = None,
    cascade: str | None = None,
    recall: float | None = None,
    precision: float | None = None,
    confidence: float | None = None,
    top: int = TOP,
    sample: int = SAMPLE,
    seed: int = 0,
    system: str | None = None,
    details: bool = False,
    window: str = "24h",
    again: bool = False,
    progress: bool = True,
    server: ApiClient | None = None,
    **parameters: Any,
) -> Any:
    """Return the pairs of rows of two tables to which a model says yes, without asking about all pairs.

    The model is asked about candidates: pairs whose texts have the most similar vectors. A random sample of the other
    pairs bounds how many matches are among them; standard error has the figures. The same call again resumes, as that
    of `map`.

    Args:
        left, right: tables, as `map` takes them.
        template: the question about a pair: "Same company? {left.name} / {right.name}". A row's vector is that of its
            columns in the template; a row with an empty one has no pairs.
        embed: an embedding model; by default that of `cascade`, or the only one.
        cascade: a smaller model, which decides the candidates of which it is sure enough, as in `filter`. An embedding
            model does so by the similarity of the vectors.
        recall: least share of all matches that are returned; 0.95 by default. It is certified if `sample` is large
            enough.
        precision: with `cascade`, least share of the returned pairs to which `model` says yes; 0.95 by default.
        confidence: least probability that both are reached; 0.95 by default.
        top: candidates of each row of either table.
        sample: pairs of the sample. `seed`: draws it.
        system, window, again, progress, server, parameters: as `filter` has them.
        details: return all pairs that were asked about, with columns `answer`, `drawn` (True in the sample), `error`
            and `tokens`.

    Returns:
        A table of the kind of `left` with the columns of both, such as `left.name` and `right.name`, `similarity`,
        `answered_by` and `confidence`, in the order of the rows.

    Raises ConfigurationError, RequestError, UnavailableError: as `map`.
    """
    aims = targets(cascade, recall, precision, confidence)
    how = {"window": window, "again": again, "progress": progress}
    server = asking.CallOptions(server=server).connected()
    question = Matching(template, model, cascade, aims, {"system": system, **how, "server": server, **parameters})
    made = matched(left, right, question, embed=embed, top=top, sample=sample, seed=seed)
    return made.frames[0].apart(made.columns(details=details))


def targets(
    cascade: str | None, recall: float | None, precision: float | None, confidence: float | None
) -> dict[str, float]:
    """Return the targets that are set. Raises ConfigurationError for one out of range, or precision alone."""
    return asking.targets("any", recall=recall, confidence=confidence) | asking.targets(cascade, precision=precision)


@dataclass(frozen=True)
class Matching:
    """What is asked about a pair, of whom, and the targets. `how`: other arguments of `filter`."""

    template: str
    model: str
    cascade: str | None
    aims: Mapping[str, float]
    how: Mapping[str, Any]

    def aim(self, name: str) -> float:
        return self.aims.get(name, DEFAULT)

    @property
    def within(self) -> float:
        """Least share of the candidates' matches that are found: half of the loss is that of the other pairs."""
        return 1.0 if self.cascade is None else 1 - (1 - self.aim("recall")) / 2

    @property
    def risk(self) -> float:
        """Of the bound on the other pairs' matches."""
        return (1 - self.aim("confidence")) / (1 if self.cascade is None else 2)


class Matched(NamedTuple):
    """The pairs that were asked about, the candidates first, then the sample; and the figures of the report."""

    frames: Sequence[Frame]
    rows: Sequence[Numbers]  # of either table, for each pair
    similarity: Matrix
    answers: Sequence[Mapping[str, Any]]  # as `filter` has them in detail
    report: Mapping[str, Any]

    def columns(self, *, details: bool = False) -> dict[str, Column]:
        """Return the columns of the matches, or with `details` those of all pairs."""
        order = np.lexsort(tuple(reversed(self.rows))).tolist()
        if not details:
            order = [place for place in order if self.answers[place]["answer"] == YES]
        columns = {}
        for side, frame, rows in zip(SIDES, self.frames, self.rows, strict=True):
            for name in frame.columns:
                cells = frame.cells(name)
                columns[side + name] = Column([cells[row] for row in rows[order].tolist()], None)
        columns[SIMILARITY] = Column([round(value, 4) for value in self.similarity[order].tolist()], "number")
        kinds: dict[str, Kind] = {"answered_by": "string", "confidence": "number"}
        if details:
            columns["drawn"] = Column([place >= self.report["candidates"] for place in order], "boolean")
            kinds |= {"answer": "string", "error": "string", "tokens": "integer"}
        return columns | {
            name: Column([self.answers[place][name] for place in order], kind) for name, kind in kinds.items()
        }


def matched(
    left: Any, right: Any, question: Matching, *, embed: str | None, top: int, sample: int, seed: int
) -> Matched:
    """Ask about the candidates and the sample, and say what follows. See `match`."""
    if top < 1 or sample < 0:
        raise ConfigurationError("top is 1 at least, and sample is not negative")
    tables = [frames.of(left), frames.of(right)]
    names = [side + name for side, frame in zip(SIDES, tables, strict=True) for name in frame.columns]
    text = asking.template(question.template, "template", names)
    if text.images or text.has_all:
        raise ConfigurationError("template: name columns of texts; neither images nor {*} can be matched")
    cells: dict[str, Sequence[Any]] = {}
    for side, frame in zip(SIDES, tables, strict=True):
        used = [name for name in frame.columns if side + name in text.needed(names)]
        if not used:
            raise ConfigurationError("template: it compares rows of both tables; name {left.column} and {right.column}")
        cells |= {side + name: frame.cells(name) for name in used}
    embed, by_vectors = _models(question, embed)
    rows, vectors = zip(*(_vectors(cells, side, embed, question.how) for side in SIDES), strict=True)
    total = len(rows[0]) * len(rows[1])
    none = np.empty(0, np.int64)
    nearest, ranks = candidates(vectors[0], vectors[1], top) if total else (none, none)
    pairs = np.concatenate([nearest, sample_others(nearest, total, sample, seed)])
    places = np.divmod(pairs, max(len(rows[1]), 1))
    similarity = _similarity(vectors, places)
    ends = [of_side[place] for of_side, place in zip(rows, places, strict=True)]

    def asked(part: slice, **options: Any) -> list[Mapping[str, Any]]:
        """Return the answers about some of the pairs."""
        table: list[dict[str, Any]] = [
            {SIMILARITY: round(min(max((1 + cosine) / 2, 0), 1), 6)} for cosine in similarity[part].tolist()
        ]
        for name, values in cells.items():
            for pair, row in zip(table, ends[name.startswith(SIDES[1])][part].tolist(), strict=True):
                pair[name] = values[row]
        if not table:
            return []
        return list(filter(table, question.template, model=question.model, details=True, **options, **question.how))

    options: dict[str, Any] = {}
    if question.cascade is not None:
        options = {"cascade": question.cascade, "recall": question.within, "confidence": 1 - question.risk}
        options |= {"precision": question.aim("precision"), "scores": SIMILARITY if by_vectors else None}
    answers = asked(slice(len(nearest)), **options) + asked(slice(len(nearest), None))
    missing = [len(frame) - len(numbers) for frame, numbers in zip(tables, rows, strict=True)]
    report = {"without_vectors": missing, **report_of(question, total, ranks, answers)}
    for line in _said(report, question):
        click.echo(f"match: {line}", err=True)
    return Matched(tables, ends, similarity, answers, report)


def _models(question: Matching, embed: str | None) -> tuple[str, bool]:
    """Return the embedding model, and whether its similarities are the cascade. Raises ConfigurationError."""
    server = question.how["server"]
    asking.served(server, question.model, CHAT.path)
    if question.cascade is not None:
        serves = asking.served(server, question.cascade, CHAT.path, EMBEDDINGS.path)["batchyard"]["endpoints"]
        if CHAT.path not in serves:
            if embed not in (None, question.cascade):
                raise ConfigurationError(
                    f"embed: {question.cascade} of the cascade is an embedding model; name no other"
                )
            return question.cascade, True
    if embed is None:
        there = [each["id"] for each in server.models() if EMBEDDINGS.path in each["batchyard"]["endpoints"]]
        if len(there) != 1:
            known = f"name one of {', '.join(sorted(there))}" if there else "the server has none"
            raise ConfigurationError(f"embed: candidates need an embedding model; {known}")
        (embed,) = there
    return embed, False


def _vectors(
    cells: Mapping[str, Sequence[Any]], side: str, model: str, how: Mapping[str, Any]
) -> tuple[Numbers, Matrix]:
    """Return the numbers of the rows of one side that have a vector, and these, of length 1."""
    columns = {name.removeprefix(side): values for name, values in cells.items() if name.startswith(side)}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    text = " ".join(f"{{{name}}}" for name in columns)
    options = {name: how[name] for name in ("window", "again", "progress", "server")}
    made = embedded(rows, text, model=model, normalize=True, **options)
    numbers = np.array([row for row, vector in enumerate(made) if vector is not None], np.int64)
    return numbers, np.array([vector for vector in made if vector is not None], np.float32)


def candidates(left: Matrix, right: Matrix, top: int) -> tuple[Numbers, Numbers]:
    """Return the pairs of rows near each other, as `row of left * rows of right + row of right` in rising order.

    Also, for each, how near: 0 if either row is the nearest of the other.
    """
    there, back = _nearest(left, right, top), _nearest(right, left, top)
    pairs = np.concatenate(
        [
            (there + np.arange(len(left))[:, None] * len(right)).T.ravel(),
            (back * len(right) + np.arange(len(right))[:, None]).T.ravel(),
        ]
    )
    ranks = np.concatenate([np.repeat(np.arange(each.shape[1]), each.shape[0]) for each in (there, back)])
    order = np.argsort(ranks, kind="stable")
    found, first = np.unique(pairs[order], return_index=True)
    return found, ranks[order][first]


def _nearest(rows: Matrix, others: Matrix, top: int) -> Numbers:
    """Return for each row its `top` nearest of the others, the nearest first. All of them are compared, in blocks."""
    top, size = min(top, len(others)), max(1, BLOCK // len(others))
    made = []
    for start in range(0, len(rows), size):
        products = rows[start : start + size] @ others.T
        best = np.argpartition(-products, top - 1, axis=1)[:, :top]
        order = np.argsort(-np.take_along_axis(products, best, axis=1), axis=1, kind="stable")
        made.append(np.take_along_axis(best, order, axis=1))
    return np.concatenate(made)


def sample_others(nearest: Numbers, total: int, number: int, seed: int) -> Numbers:
    """Return a uniform sample without replacement of the pairs that are no candidates, in rising order."""
    rest = total - len(nearest)
    drawn = np.array(sorted(random.Random(seed).sample(range(rest), min(number, rest))), np.int64)
    return drawn + np.searchsorted(nearest - np.arange(len(nearest)), drawn, "right")


def _similarity(vectors: Sequence[Matrix], ends: Sequence[Numbers]) -> Matrix:
    """Return the cosines of pairs, computed in blocks."""
    size = 1 << 16
    parts = [
        np.einsum("ij,ij->i", *(of_side[end[start : start + size]] for of_side, end in zip(vectors, ends, strict=True)))
        for start in range(0, len(ends[0]), size)
    ]
    return np.concatenate([np.empty(0, np.float32), *parts])


def report_of(question: Matching, total: int, ranks: Numbers, answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the answers say of all pairs. `answers`: those of the candidates, then those of the sample."""
    among, drawn = answers[: len(ranks)], answers[len(ranks) :]
    rest, is_match = total - len(ranks), np.array([answer["answer"] == YES for answer in among], bool)
    found = sum(answer["answer"] == YES for answer in drawn)
    # A pair without an answer may be a match.
    failed, unknown = (sum(answer["answer"] is None for answer in each) for each in (among, drawn))
    unknown += found
    most = shares.interval(rest, len(drawn), unknown, 2 * question.risk)[1] if drawn else rest
    by_small = np.array([answer["answered_by"] not in (None, question.model) for answer in among], bool)
    right = kept = int(is_match.sum())
    within = question.within if by_small.any() else 1.0
    if by_small.any():  # the certified precision says how many of the small model's matches are right at least
        right = max(int((is_match & ~by_small).sum()), math.ceil(question.aim("precision") * kept))
    # The bound may rise or fall with the number of right ones.
    lost = failed + most
    bound = min((one + found) / (one / within + lost) if one or lost else 1.0 for one in (right, kept))
    aim = question.aim("recall")
    allowed = right * (1 / aim - 1 / within) - failed
    return {
        "pairs": total,
        "candidates": len(ranks),
        "drawn": len(drawn),
        "asked": len(answers) - int(by_small.sum()),
        "matches": kept + found,
        "by_nearness": np.bincount(ranks[is_match]).tolist(),
        "found": found,
        "failed": failed,
        "at_most": most,
        "recall": aim,
        "recall_at_least": bound,
        "certified": bound >= aim,
        # Without a match among them, this many would certify the target.
        "needed": min(rest, math.ceil(-math.log(question.risk) * rest / allowed)) if allowed >= 1 else rest,
        "can_certify": allowed > 0,
        "is_poor": found > 0 and found * rest > allowed * len(drawn),
    }


def _said(report: Mapping[str, Any], question: Matching) -> list[str]:
    """Return the report in words."""
    share = report["asked"] / (report["pairs"] or 1)
    nearness = ", ".join(f"{count:,}" for count in report["by_nearness"]) or "none"
    rest = report["pairs"] - report["candidates"]
    said = [
        f"{count:,} rows of the {name} table have no vector, so no pairs"
        for name, count in zip(("left", "right"), report["without_vectors"], strict=True)
        if count
    ]
    said += [
        f"{report['candidates']:,} of {report['pairs']:,} pairs are candidates; {question.model} was asked about "
        f"{report['asked']:,} pairs ({share:.2%}), {report['drawn']:,} of these drawn from the other {rest:,}",
        f"{report['matches']:,} matches; of the candidates by nearness, the nearest first: {nearness}",
    ]
    if report["drawn"]:
        said.append(
            f"{report['found']:,} of the {report['drawn']:,} drawn pairs match: with probability "
            f"{1 - question.risk:g}, at most {report['at_most']:,} of all other pairs do"
        )
    sure = f"with probability {question.aim('confidence'):g}, at least {report['recall_at_least']:.1%} of all matches"
    if report["certified"]:
        said.append(f"{sure} are found")
        return said
    remedy = f"matches are too rare for this sample; {report['needed']:,} pairs without a match would certify it"
    if report["is_poor"]:
        remedy = "too many matches are not among the candidates; raise top"
    if report["failed"] and not report["can_certify"]:
        remedy = f"{report['failed']:,} candidates have no answer; the same call asks about them again"
    said.append(f"recall {report['recall']:g} is not certified, only that {sure} are found: {remedy}")
    return said
