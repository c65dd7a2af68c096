"""The tokens of a trajectory: which of them the model has sampled, and where a turn does not go on from the one before.

A turn's prompt usually begins with the prompt and the answer of the turn before. It does not if the chat template
writes the history in another way than the model did: arguments of a call with other blanks, or without its reasoning.
Then the turn begins a branch, with all of its prompt, since no sequence holds both.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from batchyard.recipes import Answer

_FLAT = ("prompt_ids", "response_ids", "response_mask", "response_logprobs")


def tokens_of(answers: Iterable[Answer]) -> Iterator[dict[str, Any] | None]:
    """Yield the tokens of each turn; None if the engine has not given their ids.

    `goes_on`: the prompt begins with all tokens of the turn before, and `prompt_ids` are those behind them.
    `response_ids`: those of the answer; `logprobs` are theirs, None if the engine has not given them.
    """
    ids: list[int] = []
    for answer in answers:
        prompt, response = (answer.extra.get(name) for name in ("prompt_token_ids", "token_ids"))
        if not isinstance(prompt, list) or not isinstance(response, list):
            yield None
            continue
        goes_on = bool(ids) and prompt[: len(ids)] == ids
        new = prompt[len(ids) :] if goes_on else prompt
        ids = [*prompt, *response]
        logprobs = logprobs_of(answer, len(response))
        yield {"goes_on": goes_on, "prompt_ids": new, "response_ids": response, "logprobs": logprobs}


def logprobs_of(answer: Answer, tokens: int | None = None) -> list[float] | None:
    """Return the log-probability of each token of an answer; None without them, or if there are not `tokens`."""
    content = (answer.extra.get("logprobs") or {}).get("content")
    if not isinstance(content, list):
        return None
    values = [float(token["logprob"]) for token in content]
    return values if tokens is None or len(values) == tokens else None


def flat(turns: Sequence[Mapping[str, Any]]) -> dict[str, list[Any] | None]:
    """Return the tokens of a trajectory of one branch: the first prompt, all that follows, and its loss mask.

    `response_mask` is 1 for what the model has sampled. Log-probabilities of other tokens are 0. All are None if there
    are no ids, or several branches.
    """
    tokens = [turn.get("tokens") for turn in turns]
    if not tokens or any(each is None for each in tokens) or not all(each["goes_on"] for each in tokens[1:] if each):
        return dict.fromkeys(_FLAT)
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    for number, each in enumerate(tokens):
        assert each is not None
        given = each["prompt_ids"] if number else []
        ids += [*given, *each["response_ids"]]
        mask += [*[0] * len(given), *[1] * len(each["response_ids"])]
        logprobs += [*[0.0] * len(given), *(each["logprobs"] or [])]
    first = tokens[0]
    assert first is not None
    complete = logprobs if len(logprobs) == len(ids) else None
    return dict(zip(_FLAT, (first["prompt_ids"], ids, mask, complete), strict=True))
