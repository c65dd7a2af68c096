"""Response bodies of engines and endpoints: their texts, vectors, labels, scores and tokens.

This is the one reader of them. It takes any JSON and never raises: what has another shape than OpenAI's, Anthropic's
or vLLM's API gives is not there. A vector may also be an engine's array, before it is JSON. `fault` says whether a body
is an answer at all, before it is stored as one.
"""

import base64
import binascii
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

RESULTS = (
    *("choices", "data", "output", "content", "results", "answers"),
    *("embeddings", "tokens", "prompt", "text", "input_tokens"),
)
"""Keys of the results of all endpoints: each response has one of them."""
BROKEN_OFF = ("error", "abort")
"""Finish reasons of an output that its server broke off. vLLM says `abort` of what it computes as it ends."""
_CUT_OFF = ("length", "max_tokens", "model_context_window_exceeded")
"""Finish reasons of an output that a limit of tokens ended, OpenAI's and Anthropic's."""
_REFUSED = ("refusal", "content_filter")
"""Finish reasons of an output that its model or a filter refused, Anthropic's and OpenAI's."""
REPETITION = "repetition"
"""Finish reason of an output that vLLM ended because it repeated itself."""
NOT_FLAGGED = "not flagged"
"""Label of an input in which a moderation flags nothing."""
_ELEMENTS = {"float32": (4, "f"), "float16": (2, "e"), "bfloat16": (2, "")}
"""Bytes and `struct` format of the elements of packed vectors, by the request's `embed_dtype`."""


class Fault(NamedTuple):
    """Why a body is no answer."""

    message: str  # in the words of the body's error, if it has one
    status: int | None = None  # the HTTP status that the error names; None without one
    error: Mapping[str, Any] = {}  # the error object in the body; empty if it has none


class NoText(NamedTuple):
    """Why an output has no text: `refusal`, `content_filter`, `tool_call`, `reasoning_only`, `token_ids`
    or `empty_answer`."""

    code: str
    message: str


TOKEN_IDS = NoText("token_ids", 'The answer has token ids and no text; output_mode "text" asks for both.')
TOOL_CALL = NoText("tool_call", "The answer is a tool call and has no text.")


class TokenUsage(NamedTuple):
    """Tokens as reported; None where the response does not tell."""

    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    total_tokens: int | None = None


@dataclass(frozen=True)
class Output:
    """One of the outputs that a model has generated for a request."""

    text: str | None = None  # None if it has none, see `no_text`. It may be empty.
    reasoning: str | None = None  # what a reasoning model thought before
    refusal: str | None = None  # the model's words if it has refused
    tool_calls: Sequence[Any] = ()  # as the response has them
    finish_reason: str | None = None
    logprobs: Any = None
    token_ids: Any = None
    prompt_token_ids: Any = None  # as vLLM gives them beside the token ids of the answer

    @property
    def is_cut_off(self) -> bool:
        """True if it ended because it had as many tokens as it may have."""
        return self.finish_reason in _CUT_OFF

    @property
    def is_empty(self) -> bool:
        """True if it has neither a text but blanks, nor a refusal, calls or token ids in its place."""
        return not (self.text or "").strip() and not (self.refusal or self.tool_calls or self.token_ids)

    @property
    def no_text(self) -> NoText | None:
        """Why it has no text; None if it has one. A text may be empty if the output has nothing else."""
        ended = f" (finish_reason {self.finish_reason})" if self.finish_reason else ""
        if self.text:
            return None
        if self.refusal:
            return NoText("refusal", f"The model refused: {self.refusal}")
        if self.finish_reason == "content_filter":
            return NoText("content_filter", "A content filter removed the answer.")
        if self.tool_calls:
            return TOOL_CALL
        if self.reasoning:
            remedy = " Raise max_tokens." if self.is_cut_off else ""
            return NoText("reasoning_only", f"The answer has reasoning only and no text{ended}.{remedy}")
        if self.text is None and self.token_ids:
            return TOKEN_IDS
        return None if self.text is not None else NoText("empty_answer", f"The answer has no text{ended}.")


def fault(body: Any) -> Fault | None:
    """Return why the body of a response with status 200 is no answer; None if it is one."""
    if not isinstance(body, Mapping):
        return Fault("the body is no JSON object")
    if body.get("error"):
        return _reported(body["error"])
    if body.get("status") == "cancelled":  # a response of Responses that its server broke off
        return Fault("the response was cancelled")
    key = next((key for key in RESULTS if key in body), None)
    if key is None:
        return Fault(f"the body has none of {', '.join(RESULTS[:3])}, …")
    results = body[key]
    if key not in ("choices", "data", "output", "content", "results"):
        return Fault(f"{key} is null") if results is None else None
    if not isinstance(results, list) or not results:
        # A model may end its turn in Messages and Responses without any content.
        if key in ("content", "output") and isinstance(results, list):
            return None
        return Fault(f"{key} is {_kind(results)}")
    faults = (_of_result(key, f"{key}[{index}]", result) for index, result in enumerate(results))
    return next((fault for fault in faults if fault is not None), None)


def error(body: Any) -> Mapping[str, Any]:
    """Return the error in the body of a response; a text is its message. Empty if it has none."""
    reported = mapping(body).get("error")
    return reported if isinstance(reported, Mapping) else {"message": reported} if reported else {}


def outputs(body: Any) -> list[Output]:
    """Return what a model has generated: an output for each of `n`. Empty for embeddings, labels and scores."""
    if not isinstance(body, Mapping):
        return []
    if isinstance(body.get("choices"), list):
        prompt = body.get("prompt_token_ids")
        return [_of_choice(choice, prompt) for choice in body["choices"] if isinstance(choice, Mapping)]
    if isinstance(body.get("output"), list):
        return [_of_output(body["output"], body)]
    if isinstance(body.get("content"), list):
        text, reasoning, refusal, calls = _of_parts(body["content"])
        return [Output(text, reasoning, refusal, calls, _string(body.get("stop_reason")))]
    if _is_number(body.get("input_tokens")):
        return [Output(str(body["input_tokens"]))]  # the count of a message's tokens
    text = body.get("prompt", body.get("text"))  # detokenize, or a transcription
    return [Output(text)] if isinstance(text, str) else []


def output(body: Any) -> Output:
    """Return the first output; one without a text if there is none."""
    return next(iter(outputs(body)), Output())


def flaws(body: Any) -> list[str]:
    """Return the names of the flaws that an answer shows by itself."""
    found = outputs(body)
    shown = {
        "cut_off": any(output.is_cut_off for output in found),
        "refused": any(output.refusal or output.finish_reason in _REFUSED for output in found),
        "empty": any(output.is_empty for output in found),
        "looped": any(output.finish_reason == REPETITION for output in found),
    }
    return [name for name, is_shown in shown.items() if is_shown]


def explained(body: dict[str, Any]) -> dict[str, Any]:
    """Return a response body; one that repeats itself says so, and where that begins, under `batchyard`."""
    looped = next((output for output in outputs(body) if output.finish_reason == REPETITION), None)
    if looped is None:
        return body
    stopped = {"stopped": REPETITION, "loop_start": _loop_start(looped.text or looped.reasoning or "")}
    return body | {"batchyard": dict(mapping(body.get("batchyard"))) | stopped}


def loop_start(body: Any) -> int | None:
    """Return the characters before the repetition of an answer that `explained` has marked."""
    return _count(mapping(mapping(body).get("batchyard")), "loop_start")


def _loop_start(text: str) -> int:
    """Return the length of a text before the repetition at its end, at least three times the same, by the Z algorithm.

    The algorithm is linear in the text: answers are as long as clients ask for.
    """
    back = text[::-1]
    same, left, right, longest = [0] * len(back), 0, 0, 0  # same[i]: how far back[i:] is as back
    for at in range(1, len(back)):
        length = min(right - at, same[at - left]) if at < right else 0
        while at + length < len(back) and back[length] == back[at + length]:
            length += 1
        same[at] = length
        if at + length > right:
            left, right = at, at + length
        if length >= 2 * at:  # `at` is the length of the pattern
            longest = max(longest, at + length)
    return len(text) - longest


def vectors(body: Any, request: Mapping[str, Any] | None = None) -> list[list[float]]:
    """Return the vectors of embeddings and pooling in the order of the inputs, packed ones decoded.

    `request`: the body of the request, whose `embed_dtype` and `endianness` say how vectors are packed.
    """
    all_vectors: list[list[float]] = []
    for entry in _entries(body):
        value = entry.get("embedding", entry.get("data"))
        if isinstance(value, str):
            value = _unpacked(value, request or {})
        elif _is_array(value):
            value = value.tolist()
        if isinstance(value, list):
            is_matrix = bool(value) and all(isinstance(row, list) for row in value)
            for vector in value if is_matrix else [value]:
                if isinstance(vector, list) and all(map(_is_number, vector)):
                    all_vectors.append(vector)
    return all_vectors


def _is_array(value: Any) -> bool:
    """True for a NumPy array, as engines give it, which is no JSON yet. The client's first step does without NumPy."""
    return hasattr(value, "__array_interface__")


def labels(body: Any) -> list[str]:
    """Return the label of each classified or moderated input, or the most probable option of each decision."""
    answers = mapping(body).get("answers")
    if isinstance(answers, Mapping):
        return [label for answer in answers.values() if (label := _decided(mapping(answer))) is not None]
    return [label for entry in _entries(body) if (label := _label(entry)) is not None]


def _label(entry: Mapping[str, Any]) -> str | None:
    """Return the label of a classified input; of a moderated one the flagged category with the highest score."""
    if not isinstance(entry.get("flagged"), bool):
        return _string(entry.get("label"))
    ratings = mapping(entry.get("category_scores"))
    flagged = [name for name, flag in mapping(entry.get("categories")).items() if flag is True]
    worst = max(flagged, key=lambda name: ratings[name] if _is_number(ratings.get(name)) else 0, default=None)
    return str(worst or "flagged") if entry["flagged"] else NOT_FLAGGED


def probabilities(body: Any) -> list[list[float]]:
    """Return what a classification gives all labels of each input."""
    return [[float(value) for value in _list(entry.get("probs")) if _is_number(value)] for entry in _entries(body)]


def scores(body: Any) -> list[float]:
    """Return the scores of a request's documents or items in the order of the response."""
    values = (entry.get("score", entry.get("relevance_score")) for entry in _entries(body))
    return [float(value) for value in values if _is_number(value)]


def tokens(body: Any) -> list[int]:
    """Return the ids of the tokens of a text, or of those that were generated."""
    ids = mapping(body).get("tokens")
    ids = output(body).token_ids if ids is None else ids
    return ids if isinstance(ids, list) and all(isinstance(one, int) for one in ids) else []


def usage(body: Any) -> TokenUsage:
    """Return the tokens that a response reports, under OpenAI's or Anthropic's names."""
    reported = mapping(mapping(body).get("usage"))
    details = [mapping(reported.get(f"{name}_tokens_details")) for name in ("prompt", "input", "completion", "output")]
    return TokenUsage(
        _count(reported, "prompt_tokens", "input_tokens"),
        _count({**details[1], **details[0], **reported}, "cached_tokens", "cache_read_input_tokens"),
        _count(reported, "completion_tokens", "output_tokens"),
        _count({**details[3], **details[2]}, "reasoning_tokens"),
        _count(reported, "total_tokens"),
    )


def served_model(body: Any) -> str | None:
    """Return what an endpoint calls the model that answered; None if nothing stands beside our own name."""
    return _string(mapping(mapping(body).get("batchyard")).get("served_model"))


def _of_result(key: str, place: str, result: Any) -> Fault | None:
    if not isinstance(result, Mapping):
        return Fault(f"{place} is {_kind(result)}")
    if result.get("error"):
        return _reported(result["error"])
    if key == "data":
        vector = result.get("embedding", result.get("data", ()))
        return None if isinstance(vector, list | str | tuple) or _is_array(vector) else Fault(f"{place} has no vector")
    if key != "choices":
        return None
    if (reason := result.get("finish_reason")) in BROKEN_OFF:
        return Fault(f"{place} ended with finish_reason {reason}")
    message = result.get("message")
    if isinstance(message, Mapping):
        content = message.get("content")
        if content is None or isinstance(content, str | list):
            return None
        return Fault(f"{place}.message.content is {_kind(content)}")
    answered = isinstance(result.get("text"), str) or isinstance(result.get("token_ids"), list)
    return None if answered else Fault(f"{place} has neither a message nor a text")


def _reported(error: Any) -> Fault:
    details = error if isinstance(error, Mapping) else {"message": error}
    message = details.get("message") or details.get("detail") or error
    status = next((value for name in ("code", "status") if _is_status(value := details.get(name))), None)
    text = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False, default=str)
    return Fault(text, status and int(status), details)


def _of_choice(choice: Mapping[str, Any], prompt_token_ids: Any = None) -> Output:
    message = choice.get("message")
    message = message if isinstance(message, Mapping) else {"content": choice.get("text")}
    content, text, reasoning, refusal = message.get("content"), None, None, None
    if isinstance(content, list):
        text, reasoning, refusal, _ = _of_parts(content)
    elif isinstance(content, str):
        text = content
    calls = message.get("tool_calls")
    if not calls and isinstance(message.get("function_call"), Mapping):
        calls = [{"type": "function", "function": message["function_call"]}]
    return Output(
        text=text,
        reasoning=_string(message.get("reasoning_content")) or _string(message.get("reasoning")) or reasoning,
        refusal=_string(message.get("refusal")) or refusal,
        tool_calls=calls if isinstance(calls, list) else (),
        finish_reason=_string(choice.get("finish_reason")),
        logprobs=choice.get("logprobs"),
        token_ids=choice.get("token_ids"),
        prompt_token_ids=choice.get("prompt_token_ids", prompt_token_ids),
    )


def _of_output(items: Sequence[Any], body: Mapping[str, Any]) -> Output:
    """Return the output of OpenAI's Responses: messages, reasoning and calls, one behind the other."""
    parts: list[Any] = []
    calls: list[Any] = []
    for item in items:
        kind = item.get("type") if isinstance(item, Mapping) else None
        if kind == "reasoning":
            pieces = [*_list(item.get("summary")), *_list(item.get("content"))]
            parts += [{"type": "thinking", "thinking": mapping(piece).get("text")} for piece in pieces]
        elif isinstance(kind, str) and kind.endswith("_call"):
            calls.append(item)
        elif isinstance(item, Mapping):
            parts += _list(item.get("content"))
    text, reasoning, refusal, _ = _of_parts(parts)
    reason = mapping(body.get("incomplete_details")).get("reason") or body.get("status")
    reason = {"max_output_tokens": "length", "completed": "stop"}.get(str(reason), reason)
    return Output(text, reasoning, refusal, calls, _string(reason))


def _of_parts(parts: Sequence[Any]) -> tuple[str | None, str | None, str | None, list[Any]]:
    """Return text, reasoning, refusal and calls of a list of content parts."""
    texts: dict[str, list[str]] = {"text": [], "thinking": [], "refusal": []}
    calls = []
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "tool_use":
            calls.append(part)
            continue
        name = {"output_text": "text", "reasoning": "thinking"}.get(str(kind), str(kind))
        value = part.get(name, part.get("text")) if isinstance(part, Mapping) and name in texts else None
        if isinstance(value, list):  # Mistral: thinking is a list of parts
            value = "".join(filter(None, (_string(mapping(piece).get("text")) for piece in value)))
        if isinstance(value, str):
            texts[name].append(value)
    text, reasoning, refusal = ("".join(pieces) if pieces else None for pieces in texts.values())
    return text, reasoning, refusal, calls


def _decided(answer: Mapping[str, Any]) -> str | None:
    """Return the name of the most probable option of a decision; None if it has no probabilities."""
    probabilities = {name: value for name, value in mapping(answer.get("probabilities")).items() if _is_number(value)}
    if not probabilities:
        return None
    option = max(probabilities, key=lambda name: probabilities[name])
    return _string(mapping(answer.get("legend")).get(option)) or str(option)


def _entries(body: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(body, Mapping):
        values = body.get("data") if isinstance(body.get("data"), list) else body.get("results")
        yield from (entry for entry in _list(values) if isinstance(entry, Mapping))


def _unpacked(text: str, request: Mapping[str, Any]) -> list[float] | None:
    """Return the vector that Base64 packs; None if it packs none."""
    size, form = _ELEMENTS.get(str(request.get("embed_dtype") or "float32"), (0, ""))
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    if not size or not raw or len(raw) % size:
        return None
    order = ">" if request.get("endianness") == "big" else "<"
    if not form:  # a bfloat16 is the upper half of a float32
        halves = [raw[at : at + 2] for at in range(0, len(raw), 2)]
        raw = b"".join(half + b"\0\0" if order == ">" else b"\0\0" + half for half in halves)
        size, form = 4, "f"
    return list(struct.unpack(f"{order}{len(raw) // size}{form}", raw))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_status(value: Any) -> bool:
    return (isinstance(value, int) or (isinstance(value, str) and value.isdecimal())) and 400 <= int(value) < 600


def _count(values: Mapping[str, Any], *names: str) -> int | None:
    """Return the first of these that is a number of tokens."""
    counts = (value for value in map(values.get, names) if isinstance(value, int) and not isinstance(value, bool))
    return next((value for value in counts if value >= 0), None)


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def mapping(value: Any) -> Mapping[str, Any]:
    """Return an object of JSON, an empty one in place of any other value."""
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _kind(value: Any) -> str:
    if value == []:
        return "an empty list"
    kinds = {type(None): "null", dict: "an object", list: "a list", str: "a text", bool: "a boolean"}
    return kinds.get(type(value), "a number")
