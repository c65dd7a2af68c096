"""The core's answers as a recipe is sent them, and whether they can be used."""

import re
from collections.abc import Generator, Mapping
from typing import Any, TypeAlias, TypeVar

from referencing.exceptions import Unresolvable

from batchyard import json_lines
from batchyard.endpoints import output_lines, responses
from batchyard.recipes import Answer, Failure, Item, Result
from batchyard.recipes.program import Request
from batchyard.wording import quoted
from recipes.gates import json_texts

T = TypeVar("T")
Part: TypeAlias = Generator[Any, Any, T]
"""A part of a program, which yields turns as the whole does."""
AGAIN = frozenset({408, 429})
"""Statuses of answers that another attempt may better. So may 5xx."""
NOT_AGAIN = frozenset({"engine_died", "engine_unavailable"})
_INTEGER = re.compile(r"-?\d+")


def answer_of(output_line: str, seconds: float | None, request: Request) -> Answer:
    """Return what a recipe is sent for an output line of the core.

    A generated answer without a text is not `ok`, and its error says why. A tool call is `ok`: it is in `extra`.
    """
    line = json_lines.loads(output_line)
    response = line.get("response") or {}
    status, body = response.get("status_code"), response.get("body") or {}
    common: dict[str, Any] = {"status_code": status, "seconds": seconds, "seed": request.seed, "model": request.model}
    if status != 200:
        code, reason = output_lines.reason(line)
        return Answer(ok=False, error={"code": code, "message": reason}, **common)
    outputs, usage = responses.outputs(body), responses.usage(body)
    output = outputs[0] if outputs else responses.Output()
    extra = {
        **{name: getattr(output, name) for name in ("logprobs", "token_ids", "prompt_token_ids")},
        "tool_calls": list(output.tool_calls) or None,
        "reasoning": output.reasoning,
        "refusal": output.refusal,
        "data": None if outputs else body.get("data"),
    }
    common |= {
        "finish_reason": output.finish_reason,
        **{name: getattr(usage, name) or 0 for name in ("input_tokens", "output_tokens", "cached_tokens")},
        "extra": {name: value for name, value in extra.items() if value is not None},
    }
    no_text = output.no_text if outputs else None
    if no_text is not None and no_text.code != "tool_call":
        return Answer(ok=False, error=no_text._asdict(), **common)
    text = output.text or ""
    violation = _violation(request.structure, text)
    if violation is not None:
        message = f"{violation} The answer: {quoted(text)}, finish_reason {output.finish_reason}."
        return Answer(ok=False, error={"code": "structured_output_violated", "message": message}, **common)
    return Answer(ok=True, text=text, **common)


def _violation(structure: Mapping[str, Any], text: str) -> str | None:
    """Return how a text breaks the `json` or the `choice` that it was asked for; None if it does not."""
    if "choice" in structure and text not in structure["choice"]:
        return "The answer is none of the choices."
    if "json" in structure:
        item = Item(0, "", {})
        try:
            failure = json_texts.is_json(text, item, structure["json"])
        except (ValueError, Unresolvable):  # a schema that an engine may take, and the gate does not
            failure = json_texts.is_json(text, item)
        return None if failure is None else failure.message
    return None


def may_better(answer: Answer) -> bool:
    """True if the same request may have another outcome in another attempt."""
    if answer.ok or answer.error is None or answer.error.get("code") in NOT_AGAIN:
        return False
    status = answer.status_code
    return answer.error.get("code") == "request_timeout" or (status is not None and (status in AGAIN or status >= 500))


def unanswered(answer: Answer) -> Mapping[str, Any] | None:
    """Return why there is no text to judge; None if there is one, which may be empty."""
    if answer.ok and not answer.text and answer.extra.get("tool_calls"):
        return responses.TOOL_CALL._asdict()
    return None if answer.ok else answer.error or {"code": "no_answer", "message": "There is no answer."}


def failure_of(answer: Answer) -> Failure | None:
    """Return why there is no answer, None if there is one. A text of blanks is none."""
    error = unanswered(answer)
    if error is None:
        return None if answer.text.strip() else Failure("empty_answer", "The answer has no text.")
    return Failure(str(error.get("code") or "no_answer"), str(error.get("message") or "There is no answer."))


def integer_of(answer: Answer, low: int, high: int) -> int | None:
    """Return the first integer of an answer, None if it has none in the range."""
    number = _INTEGER.search(answer.text) if answer.ok else None
    value = int(number[0][:20]) if number else None
    return value if value is not None and low <= value <= high else None


def mark_of(low: int, high: int) -> dict[str, Any]:
    """Return the JSON schema of an answer that is a mark."""
    mark = {"type": "integer", "minimum": low, "maximum": high}
    return {"type": "object", "properties": {"mark": mark}, "required": ["mark"], "additionalProperties": False}


def lost(item: Item, answer: Answer, **values: Any) -> Result:
    """Return the result of an item that failed for want of this answer."""
    error = unanswered(answer) or {}
    return item.failed(str(error.get("code") or "no_answer"), error.get("message"), **values)
