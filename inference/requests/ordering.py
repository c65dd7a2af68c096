"""The order of requests, in which an engine computes each shared prefix once while it has it cached.

Requests sorted by text are the leaves of the texts' prefix tree from left to right. In that order a cache that holds
one path computes each shared prefix once (SGLang, arXiv 2312.07104, theorem 3.1; BatchLLM, arXiv 2412.03594).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import orjson

PIECE = 64
"""Bytes compared as one: engines cache blocks of 16 tokens and more."""
PROMPTS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt", "/v1/embeddings": "input"}


def order_key(endpoint: str, body: Mapping[str, Any]) -> bytes:
    """Return a sort key that puts requests beside those with which they share the longest prefix.

    The key is a running checksum at each piece of the text: a sixteenth of its size, with equal prefixes where the
    texts have them.
    """
    # Chat templates render tools before messages.
    text = orjson.dumps([body.get("tools") or None, body[PROMPTS[endpoint]]], option=orjson.OPT_SORT_KEYS)
    key, checksum = bytearray(), 0
    for start in range(0, len(text), PIECE):
        checksum = zlib.crc32(text[start : start + PIECE], checksum)
        key += checksum.to_bytes(4)
    return bytes(key)
