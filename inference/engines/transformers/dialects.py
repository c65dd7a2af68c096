"""Responses (OpenAI) and Messages (Anthropic) as chats: text in, text out."""

import uuid
from collections.abc import Mapping
from typing import Any

from batchyard.endpoints import responses
from batchyard.endpoints.bodies.messages import turns
from batchyard.endpoints.catalog import MESSAGES, RESPONSES
from inference.engine import EngineAnswer
from inference.engines import response_bodies

_SHARED = ("temperature", "top_p", "top_k", "seed", "chat_template_kwargs")
_SAMPLING = ("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "stop", "ignore_eos")
PARAMETERS: Mapping[str, Mapping[str, str]] = {
    RESPONSES.path: {
        "input": "messages",
        "instructions": "messages",
        "max_output_tokens": "max_tokens",
        **{name: name for name in (*_SHARED, *_SAMPLING)},
    },
    MESSAGES.path: {
        "messages": "messages",
        "system": "messages",
        "max_tokens": "max_tokens",
        "stop_sequences": "stop",
        **{name: name for name in _SHARED},
    },
}
"""Parameters of each, with those of a chat that they become."""
_TEXTS = ("text", "input_text", "output_text", "refusal")


def first_not_text(endpoint: str, body: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the first part of a prompt that is no text, as (param, message)."""
    key = "input" if endpoint == RESPONSES.path else "messages"
    values = body.get(key)
    for index, item in enumerate(values if isinstance(values, list) else ()):
        kind = item.get("type", "message")
        if kind != "message":
            return f"body.{key}[{index}].type", f"engine transformers takes messages only, no {kind}"
        if not _is_text(item.get("content")):
            return f"body.{key}[{index}].content", "engine transformers takes text only"
    return None if _is_text(body.get("system")) else ("body.system", "engine transformers takes text only")


def chat(endpoint: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of the chat that a valid body is."""
    first = body.get("instructions" if endpoint == RESPONSES.path else "system")
    values = body["input" if endpoint == RESPONSES.path else "messages"]
    items = [{"role": "user", "content": values}] if isinstance(values, str) else turns(values)
    messages = [{"role": "system", "content": _text(first)}] if first else []
    messages += [{"role": item.get("role") or "user", "content": _text(item.get("content"))} for item in items]
    parameters = {name: body[key] for key, name in PARAMETERS[endpoint].items() if body.get(key) is not None}
    return {**parameters, "messages": messages}


def answer(endpoint: str, body: Mapping[str, Any], model: str, chatted: EngineAnswer) -> EngineAnswer:
    """Return the answer to a chat in the words of its endpoint. `model`: the name that the response has."""
    if chatted.body is None:
        return chatted
    if chatted.status_code != 200:
        names = {name: key for key, name in reversed([*PARAMETERS[endpoint].items()])}
        error, param = chatted.body["error"], chatted.body["error"]["param"]
        return EngineAnswer(chatted.status_code, {"error": {**error, "param": names.get(param, param)}})
    choice, usage = chatted.body["choices"][0], responses.usage(chatted.body)
    text, full, name = choice["message"]["content"], choice["finish_reason"] == "length", uuid.uuid4().hex
    tokens = (usage.input_tokens or 0, usage.output_tokens or 0)
    if endpoint == MESSAGES.path:
        stop = choice["stop_reason"]
        return EngineAnswer(
            200, response_bodies.message(name, model, text, full=full, tokens=tokens, stop_sequence=stop)
        )
    instructions = body.get("instructions")
    return EngineAnswer(
        200, response_bodies.response(name, model, text, full=full, tokens=tokens, instructions=instructions)
    )


def _is_text(content: Any) -> bool:
    return not isinstance(content, list) or all(part.get("type") in _TEXTS for part in content)


def _text(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return [{"type": "text", "text": part.get("text") or part.get("refusal") or ""} for part in content]
