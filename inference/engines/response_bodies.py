"""Response bodies of engines that make them themselves: OpenAI's, Anthropic's and vLLM's shapes."""

import time
from collections.abc import Sequence
from typing import Any


def response(
    name: str, model: str, text: str, *, full: bool, tokens: tuple[int, int], instructions: str | None
) -> dict[str, Any]:
    """Return a Response of OpenAI's with one message."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"type": "message", "id": f"msg-{name}", "role": "assistant", "status": "completed", "content": content}
    return {
        "id": f"resp-{name}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete" if full else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if full else None,
        "error": None,
        "instructions": instructions,
        "model": model,
        "output": [message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": tokens[0],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": tokens[1],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": sum(tokens),
        },
    }


def message(
    name: str, model: str, text: str, *, full: bool, tokens: tuple[int, int], stop_sequence: str | None = None
) -> dict[str, Any]:
    """Return a Message of Anthropic's with one text."""
    reason = "stop_sequence" if stop_sequence is not None else "max_tokens" if full else "end_turn"
    return {
        "id": f"msg-{name}",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": text}],
        "model": model,
        "stop_reason": reason,
        "stop_sequence": stop_sequence,
        "usage": {"input_tokens": tokens[0], "output_tokens": tokens[1]},
    }


def listed(name: str, model: str, data: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "list",
        "created": int(time.time()),
        "data": data,
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def ranking(
    name: str,
    model: str,
    documents: Sequence[str],
    scores: Sequence[float],
    *,
    top: int | None,
    tokens: int,
    shown: bool = True,
) -> dict[str, Any]:
    """Return documents by their scores, the highest first; only `top` of them if that is set. `shown`: with texts."""
    results: list[dict[str, Any]] = [
        {"index": index, **({"document": {"text": text}} if shown else {}), "relevance_score": score}
        for index, (text, score) in enumerate(zip(documents, scores, strict=True))
    ]
    results.sort(key=lambda result: -result["relevance_score"])
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"id": name, "model": model, "usage": usage, "results": results[: top or len(results)]}
