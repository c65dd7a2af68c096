"""The endpoints that a request may name, one entry each."""

from __future__ import annotations

from batchyard.endpoints.base import Endpoint

CHAT = Endpoint(
    path="/v1/chat/completions",
    body_class="chat:Chat",
    content=("messages",),
    leading=("tools",),
    output_limits=("max_completion_tokens", "max_tokens"),
    generates=True,
    result="text",
    example={"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8},
)
COMPLETIONS = Endpoint(
    path="/v1/completions",
    body_class="completions:Completion",
    content=("prompt",),
    output_limits=("max_tokens",),
    generates=True,
    result="text",
    example={"prompt": "Once upon a time", "max_tokens": 8},
)
EMBEDDINGS = Endpoint(
    path="/v1/embeddings",
    body_class="embeddings:Embedding",
    content=("input",),
    result="vectors",
    example={"input": "Say hello."},
)

ENDPOINTS: dict[str, Endpoint] = {entry.path: entry for entry in (CHAT, COMPLETIONS, EMBEDDINGS)}
"""Each endpoint by its path, the most usual first."""
