"""Log-probabilities of tokens, in OpenAI's shapes for chats and completions and in vLLM's for prompts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase


class TokenLogprob(NamedTuple):
    """What the model gives one token of a text."""

    token: int
    logprob: float
    rank: int  # how many tokens are as likely as this one at least, itself included; as vLLM counts
    top: list[tuple[int, float]]  # the most likely tokens with their log-probabilities, the best first


def token_logprobs(logits: torch.Tensor, tokens: Sequence[int], top: int) -> list[TokenLogprob]:
    """Return what rows of `logits` (tokens, vocabulary) give to their tokens, with the `top` most likely ones."""
    import torch

    logprobs = logits.float().log_softmax(-1)
    values = logprobs.gather(-1, torch.tensor(tokens, device=logits.device).unsqueeze(-1))
    ranks = (logprobs >= values).sum(-1)
    best = logprobs.topk(min(top, logits.shape[-1]))
    rows = zip(tokens, values[:, 0].tolist(), ranks.tolist(), best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        TokenLogprob(token, value, rank, list(zip(ids, tops, strict=True))) for token, value, rank, ids, tops in rows
    ]


_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + place): byte for place, byte in enumerate(_OTHERS)}
"""The bytes by the characters that stand for them in the tokens of byte-level vocabularies (GPT-2's)."""
_BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
"""A byte's token in SentencePiece's vocabularies."""
_CUT = "\ufffd"


class _TokenPlace(NamedTuple):
    """What stands before a token."""

    context: list[int]  # the tokens of the text before, as far as it bears on this one's
    shown: str  # their text
    pending: list[int]  # tokens behind them that are parts of a character


class LogprobWriter:
    """Writes log-probabilities as responses have them.

    A character may be several tokens: as in vLLM the last of them has it as its text, and those before have none. Their
    `bytes` are their own, as in OpenAI's API.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def chat(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        content = [
            {
                **self._entry(place, each.token, each.logprob),
                "top_logprobs": [self._entry(place, *pair) for pair in each.top],
            }
            for place, each in zip(self._places(tokens), logprobs, strict=True)
        ]
        return {"content": content, "refusal": None}

    def completion(self, texts: Sequence[Sequence[int]], logprobs: Sequence[TokenLogprob | None]) -> dict[str, Any]:
        """Return the `logprobs` of a completion. Its first token may have none."""
        pieces = [piece for tokens in texts for piece in self._pieces(tokens)]
        places = [place for tokens in texts for place in self._places(tokens)]
        ends = list(itertools.accumulate(map(len, pieces), initial=0))
        return {
            "text_offset": ends[: len(pieces)],
            "token_logprobs": [None if each is None else each.logprob for each in logprobs],
            "tokens": pieces,
            "top_logprobs": [
                None if each is None else self._top(place, piece, each)
                for place, piece, each in zip(places, pieces, logprobs, strict=True)
            ],
        }

    def prompt(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob | None]) -> list[dict[str, Any] | None]:
        """Return the `prompt_logprobs` of a response: for each token those of itself and the most likely, by id."""
        return [
            None
            if each is None
            else {
                str(token): {"logprob": value, "rank": rank, "decoded_token": self._text(place, token)}
                for token, value, rank in _ranked(each)
            }
            for place, each in zip(self._places(tokens), logprobs, strict=True)
        ]

    def _top(self, place: _TokenPlace, piece: str, each: TokenLogprob) -> dict[str, float]:
        top = {piece: each.logprob}
        for token, value, _ in _ranked(each)[1:]:  # of several without a text the most likely counts
            top.setdefault(self._text(place, token), value)
        return top

    def _pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return the texts of tokens; one behind the other they are the text of all."""
        pieces = [self._text(place, token) for place, token in zip(self._places(tokens), tokens, strict=True)]
        if pieces and not pieces[-1]:  # what was cut off there is no character any more
            *_, last = self._places(tokens)
            pieces[-1] = self._decode([*last.context, *last.pending, tokens[-1]])[len(last.shown) :]
        return pieces

    def _places(self, tokens: Iterable[int]) -> Iterator[_TokenPlace]:
        place = _TokenPlace([], "", [])
        for token in tokens:
            yield place
            if self._text(place, token):
                context = [*place.pending, token]
                place = _TokenPlace(context, self._decode(context), [])
            else:
                place = place._replace(pending=[*place.pending, token])

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens))

    def _text(self, place: _TokenPlace, token: int) -> str:
        text = self._decode([*place.context, *place.pending, token])
        return "" if text.endswith(_CUT) else text[len(place.shown) :]

    def _entry(self, place: _TokenPlace, token: int, logprob: float) -> dict[str, Any]:
        text = self._text(place, token)
        return {"token": text, "logprob": logprob, "bytes": list(self._bytes(place, token, text))}

    def _bytes(self, place: _TokenPlace, token: int, text: str) -> bytes:
        """Return the bytes of one token, which may be a part of a character."""
        alone = self._decode([token])
        if _CUT not in alone:
            return (alone if place.pending else text).encode()
        name = self._tokenizer.convert_ids_to_tokens(token)
        if fallback := _BYTE_FALLBACK.fullmatch(name):
            return bytes.fromhex(fallback[1])
        if all(character in _BYTES for character in name):
            return bytes(_BYTES[character] for character in name)
        return alone.encode()


def _ranked(each: TokenLogprob) -> list[tuple[int, float, int]]:
    """Return the token itself, then the others of the most likely ones, each with log-probability and rank."""
    own = [(each.token, each.logprob, each.rank)]
    return own + [(token, value, rank) for rank, (token, value) in enumerate(each.top, 1) if token != each.token]
