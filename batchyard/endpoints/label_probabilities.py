"""Probabilities of the labels that a chat was held to, from the log-probabilities of its tokens."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

TOP = 20
"""Alternatives of each token to ask for: OpenAI's limit and vLLM's default. Labels that are less likely get 0."""
REQUEST = {"logprobs": True, "top_logprobs": TOP}
"""The parameters of a chat whose response `of_chat` reads."""

Step = tuple[bytes, Mapping[bytes, float]]
"""A token of an answer, and the log-probabilities of all tokens that are known in its place, its own too."""


def of_chat(body: Any, labels: Sequence[str]) -> dict[str, float] | None:
    """Return the probability of each label, 1 together, as the engine has drawn one of them token by token.

    `body`: a response to a chat that was held to these labels. None if it has no `logprobs`, or is no label.
    """
    try:
        steps = list(_steps(body["choices"][0]["logprobs"]["content"]))
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
    mass = _mass(steps, {label: label.encode() for label in labels})
    total = sum(mass.values())
    return {label: value / total for label, value in mass.items()} if total > 0 else None


def _steps(content: Iterable[Mapping[str, Any]]) -> Iterator[Step]:
    for entry in content:
        known = {_bytes(one): float(one["logprob"]) for one in entry.get("top_logprobs") or ()}
        token = _bytes(entry)
        known.setdefault(token, float(entry["logprob"]))
        yield token, known


def _bytes(token: Mapping[str, Any]) -> bytes:
    values = token.get("bytes")
    return bytes(values) if values is not None else str(token["token"]).encode()


def _mass(steps: Iterable[Step], texts: Mapping[str, bytes]) -> dict[str, float]:
    """Return the probability of each label, as far as the steps tell.

    At each token, what may follow is what some label goes on with; the engine draws from that, so its probabilities are
    taken relative to it. Several labels that go on with another token than the answer's share its probability.
    """
    mass = dict.fromkeys(texts, 0.0)
    possible, reach, length = dict(texts), 1.0, 0
    for token, known in steps:
        rests = {label: text[length:] for label, text in possible.items()}
        fits = {one: [label for label, rest in rests.items() if one and rest.startswith(one)] for one in known}
        weights = {one: math.exp(known[one]) for one, of in fits.items() if of}
        total = sum(weights.values())
        if not fits.get(token) or total == 0:
            break
        for one, weight in weights.items():
            if one != token:
                for label in fits[one]:
                    mass[label] += reach * weight / total / len(fits[one])
        reach *= weights[token] / total
        possible, length = {label: possible[label] for label in fits[token]}, length + len(token)
        if len(possible) == 1:
            break
    drawn = [label for label, text in possible.items() if len(possible) == 1 or len(text) == length]
    for label in drawn if len(possible) < len(texts) or len(drawn) == 1 else ():
        mass[label] += reach
    return mass
