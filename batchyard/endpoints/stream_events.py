"""Server-sent events of engines that make them themselves: a response, piece by piece, in the form of its endpoint."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from batchyard import json_lines
from batchyard.endpoints import catalog
from batchyard.wording import with_code

Pieces = Callable[[str], Sequence[str]]
"""Parts a text into the pieces that are sent one by one."""


class StreamEvent(NamedTuple):
    """One or more events as they are sent. `piece` is True if they bring a piece of the first output's text."""

    data: bytes
    piece: bool = False


DONE = StreamEvent(b"data: [DONE]\n\n")
STREAMED = (catalog.CHAT.path, catalog.COMPLETIONS.path, catalog.RESPONSES.path, catalog.MESSAGES.path)
"""The endpoints whose answers can be streamed."""


def whole(text: str) -> Sequence[str]:
    return [text] if text else []


def words(text: str) -> Sequence[str]:
    """Return the words of a text, each with the blank before it, as one piece each."""
    first, *others = text.split(" ")
    return [first, *(f" {word}" for word in others)] if text else []


def events(
    endpoint: str, request: dict[str, Any], body: dict[str, Any], pieces: Pieces = whole
) -> Iterator[StreamEvent]:
    """Yield the events of the response `body` to a request of one of STREAMED."""
    return _EVENTS[endpoint](request, body, pieces)


def error(endpoint: str, fault: dict[str, Any]) -> bytes:
    fault = {**fault, "message": with_code(str(fault["message"]), fault.get("code"))}
    if endpoint == catalog.MESSAGES.path:
        return _typed("error", {"error": {"type": "api_error", "message": fault["message"]}}).data
    if endpoint == catalog.RESPONSES.path:
        known = {name: fault.get(name) for name in ("code", "message", "param")}
        return _typed("error", {**known, "sequence_number": 0}).data
    return _plain({"error": fault}).data


def _plain(value: dict[str, Any], *, piece: bool = False) -> StreamEvent:
    return StreamEvent(b"data: " + json_lines.dumps(value) + b"\n\n", piece)


def _typed(kind: str, value: dict[str, Any], *, piece: bool = False) -> StreamEvent:
    data = json_lines.dumps({"type": kind, **value})
    return StreamEvent(b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n", piece)


_IN_CHUNKS = ("role", "content", "tool_calls")
"""Keys of a message that have chunks of their own."""


def _ending(choice: dict[str, Any]) -> dict[str, Any]:
    """Return what the last chunk of a choice has: all but its text."""
    return {key: value for key, value in choice.items() if key not in ("message", "text")}


def _chat(request: dict[str, Any], body: dict[str, Any], pieces: Pieces) -> Iterator[StreamEvent]:
    head: dict[str, Any] = {key: body[key] for key in ("id", "created", "model") if key in body}
    head["object"] = "chat.completion.chunk"

    def chunk(choice: dict[str, Any], *, piece: bool = False) -> StreamEvent:
        return _plain({**head, "choices": [{"logprobs": None, "finish_reason": None, **choice}]}, piece=piece)

    for choice in body["choices"]:
        index, message = choice["index"], choice["message"]
        yield chunk({"index": index, "delta": {"role": "assistant", "content": ""}})
        if others := {key: value for key, value in message.items() if key not in _IN_CHUNKS and value}:
            yield chunk({"index": index, "delta": others})
        logprobs = choice.get("logprobs")  # all of them stand beside the first piece
        for text in pieces(message.get("content") or ""):
            yield chunk({"index": index, "delta": {"content": text}, "logprobs": logprobs}, piece=index == 0)
            logprobs = None
        if calls := message.get("tool_calls"):
            numbered = [{"index": number, **call} for number, call in enumerate(calls)]
            yield chunk({"index": index, "delta": {"tool_calls": numbered}})
        yield chunk({**_ending(choice), "delta": {}, "logprobs": logprobs})
    yield from _usage(request, body, head)
    yield DONE


def _completions(request: dict[str, Any], body: dict[str, Any], pieces: Pieces) -> Iterator[StreamEvent]:
    head: dict[str, Any] = {key: body[key] for key in ("id", "object", "created", "model") if key in body}
    for choice in body["choices"]:
        index, logprobs = choice["index"], choice.get("logprobs")
        for text in pieces(choice["text"]):
            part = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None}
            yield _plain({**head, "choices": [part]}, piece=index == 0)
            logprobs = None
        yield _plain({**head, "choices": [{**_ending(choice), "text": "", "logprobs": logprobs}]})
    yield from _usage(request, body, head)
    yield DONE


def _usage(request: dict[str, Any], body: dict[str, Any], head: dict[str, Any]) -> Iterator[StreamEvent]:
    if (request.get("stream_options") or {}).get("include_usage"):
        yield _plain({**head, "choices": [], "usage": body.get("usage")})


def _responses(_: dict[str, Any], body: dict[str, Any], pieces: Pieces) -> Iterator[StreamEvent]:
    number = 0

    def event(kind: str, value: dict[str, Any], *, piece: bool = False) -> StreamEvent:
        nonlocal number
        number += 1
        return _typed(f"response.{kind}", {**value, "sequence_number": number - 1}, piece=piece)

    begun = {**body, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield event("created", {"response": begun})
    yield event("in_progress", {"response": begun})
    for index, item in enumerate(body["output"]):
        empty: dict[str, Any] = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
        yield event("output_item.added", {"output_index": index, "item": {**item, "status": "in_progress", **empty}})
        if item["type"] == "function_call":
            where, arguments = {"item_id": item["id"], "output_index": index}, item["arguments"]
            if arguments:
                yield event("function_call_arguments.delta", {**where, "delta": arguments}, piece=index == 0)
            done = {**where, "name": item["name"], "arguments": arguments}
            yield event("function_call_arguments.done", done)
        for place, part in enumerate(item.get("content") or ()):
            where = {"item_id": item["id"], "output_index": index, "content_index": place}
            yield event("content_part.added", {**where, "part": {**part, "text": ""}})
            for text in pieces(part["text"]):
                yield event("output_text.delta", {**where, "delta": text, "logprobs": []}, piece=index == 0)
            yield event("output_text.done", {**where, "text": part["text"], "logprobs": []})
            yield event("content_part.done", {**where, "part": part})
        yield event("output_item.done", {"output_index": index, "item": item})
    yield event("incomplete" if body["status"] == "incomplete" else "completed", {"response": body})


def _messages(_: dict[str, Any], body: dict[str, Any], pieces: Pieces) -> Iterator[StreamEvent]:
    usage = body["usage"]
    begun = {**body, "content": [], "stop_reason": None, "stop_sequence": None, "usage": {**usage, "output_tokens": 0}}
    yield _typed("message_start", {"message": begun})
    for index, block in enumerate(body["content"]):
        yield _typed("content_block_start", {"index": index, "content_block": {"type": "text", "text": ""}})
        for text in pieces(block["text"]):
            delta = {"type": "text_delta", "text": text}
            yield _typed("content_block_delta", {"index": index, "delta": delta}, piece=index == 0)
        yield _typed("content_block_stop", {"index": index})
    ended = {"stop_reason": body["stop_reason"], "stop_sequence": body["stop_sequence"]}
    yield _typed("message_delta", {"delta": ended, "usage": usage})
    yield _typed("message_stop", {})


_EVENTS: dict[str, Callable[[dict[str, Any], dict[str, Any], Pieces], Iterator[StreamEvent]]] = {
    catalog.CHAT.path: _chat,
    catalog.COMPLETIONS.path: _completions,
    catalog.RESPONSES.path: _responses,
    catalog.MESSAGES.path: _messages,
}
