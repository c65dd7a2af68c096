"""Context length: refuses requests that certainly do not fit, without starting the engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchyard.endpoints.bodies.common import prompts
from batchyard.endpoints.catalog import ENDPOINTS
from batchyard.models import ModelSpec
from inference.engine import EngineAnswer
from inference.heads import json_object

if TYPE_CHECKING:
    from tokenizers import Tokenizer

RENDERED = ("system", "user")
"""Roles whose messages every chat template renders whole. Some leave out an assistant's reasoning."""
ORDINARY = 2
"""Bytes per context token below which a request is not tokenised: hardly any text has shorter tokens, and tokenising
costs many times the other checks."""
COUNTED = ("messages", "prompt", "input", "token_ids")
"""Keys whose texts an engine takes whole. It may cut those of the others to what fits."""
PIECE = 1024
"""Least characters tokenised at once, so that a text far too long costs little more than one just too long."""
BORDER = 8
"""Tokens that a piece may lose at its borders, to the template or to its neighbouring pieces."""
OTHER = frozenset({"chat_template", "hf_overrides", "pooler_config", "skip_tokenizer_init", "tokenizer"}) | {
    *("tokenizer_mode", "trust_remote_code"),
}
"""Keys of `engine_args` with which the model's folder no longer tells what the engine does."""


class ContextLength:
    """One model's context.

    It refuses only requests that cannot fit whatever the template adds; the engine checks the rest. `longest` is the
    limit of prompt and answer tokens together; None if unknown.

    Tokens are counted with the folder's `tokenizer.json`. If folder, tokenizer or length is unknown (a hub id, another
    kind of tokenizer, a simulated engine), nothing is refused.
    """

    def __init__(self, spec: ModelSpec, *, simulated: bool) -> None:
        self._spec = spec
        self._simulated = simulated
        self._folder = Path(spec.source) if spec.source and not simulated else None
        self.longest = self._length()

    def refusal(self, endpoint: str, body: Mapping[str, Any], size: int) -> EngineAnswer | None:
        """Return the answer to a request that cannot fit, or None. `size`: bytes of `body` as JSON."""
        if self.longest is None:
            return None
        entry = ENDPOINTS[endpoint]
        limit = entry.output_limit(body)
        if limit is not None and limit > self.longest:
            return self._answer(entry.limit_key(body) or "", f"{limit} tokens are to be generated")
        if size <= ORDINARY * self.longest or body.get("truncate_prompt_tokens") is not None:
            return None
        name = entry.content_key(body)
        if name not in COUNTED or entry.result == "tokens":
            return None
        conversation = not isinstance(body[name], str) and isinstance(body[name][0], dict)
        tokens = 0
        for text in _contents(body[name]) if conversation else prompts(body[name]):
            tokens = self._at_least(text, tokens if conversation else 0)
            if tokens > self.longest:
                return self._answer(name, f"{name} has at least {tokens} tokens")
        return None

    def _answer(self, param: str, reason: str) -> EngineAnswer:
        message = f"This model's maximum context length is {self.longest} tokens. However, {reason}."
        return EngineAnswer.refused(message, param=param, code="context_length_exceeded")

    def _at_least(self, text: str | list[int], tokens: int) -> int:
        """Return `tokens` plus the tokens that `text` certainly has. Counting ends once they are too many."""
        assert self.longest is not None
        if isinstance(text, list):
            return tokens + len(text)
        if self._tokenizer is None:
            return tokens
        text = text.strip()  # some templates do so
        size = max(PIECE, self.longest)
        for start in range(0, len(text), size):
            if tokens > self.longest:
                break
            piece = self._tokenizer.encode(text[start : start + size], add_special_tokens=False)
            tokens += max(0, len(piece) - BORDER)
        return tokens

    def _length(self) -> int | None:
        limit = self._spec.engine_args.get("max_model_len")
        if limit is not None or self._folder is None or OTHER & self._spec.engine_args.keys():
            return limit if type(limit) is int and limit > 0 and not self._simulated else None
        config = json_object(self._folder / "config.json")
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if rope.get("rope_type", rope.get("type", "default")) != "default":
            return None  # engines differ in whether it makes the context longer
        positions = config.get("max_position_embeddings")
        return positions if type(positions) is int else None

    @cached_property
    def _tokenizer(self) -> Tokenizer | None:
        file = self._folder / "tokenizer.json" if self._folder else None
        if file is None or not file.is_file() or OTHER & self._spec.engine_args.keys():
            return None
        try:
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_file(str(file))
        except Exception:  # noqa: BLE001  not installed, or a file it cannot read, of which it raises Exception itself
            return None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer


def _contents(messages: list[dict[str, Any]]) -> Iterator[str]:
    for message in messages:
        content = message.get("content") if message.get("role") in RENDERED else None
        if isinstance(content, str):
            yield content
        for part in content if isinstance(content, list) else ():
            if part.get("type") in ("text", "input_text") and isinstance(part.get("text"), str):
                yield part["text"]
