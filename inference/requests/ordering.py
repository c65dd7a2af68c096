"""The order in which requests meet an engine, so that it computes a prefix they share once while it has it cached.

Requests in the order of their texts are the leaves of the texts' prefix tree from left to right, in which a cache that
holds one path computes each shared prefix once (SGLang, arXiv 2312.07104, theorem 3.1; BatchLLM, arXiv
2412.03594).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import orjson

PIECE = 64
"""Bytes that are compared as one: the blocks that engines cache are of 16 tokens and more."""
PROMPTS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt", "/v1/embeddings": "input"}


def order_key(endpoint: str, body: Mapping[str, Any]) -> bytes:
    """Requests sorted by this stand beside those with which they share the longest prefix.

    Of a text's pieces, each with all before it, there is a checksum here: a sixteenth of the text, that sorts alike.
    """
    # Chat templates render tools before messages.
    text = orjson.dumps([body.get("tools") or None, body[PROMPTS[endpoint]]], option=orjson.OPT_SORT_KEYS)
    key, checksum = bytearray(), 0
    for start in range(0, len(text), PIECE):
        checksum = zlib.crc32(text[start : start + PIECE], checksum)
        key += checksum.to_bytes(4)
    return bytes(key)
