"""The order of requests, and the fingerprint of those with the same answer.

In that order an engine computes each shared prefix once while it has it cached. Requests sorted by text are the leaves
of the texts' prefix tree from left to right, and a cache that holds one path computes each shared prefix once (SGLang,
arXiv 2312.07104, theorem 3.1; BatchLLM, arXiv 2412.03594).
"""

import hashlib
import zlib
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

import orjson

from batchyard import json_lines
from batchyard.endpoints.catalog import ENDPOINTS
from inference.requests import media

PIECE = 64
"""Bytes compared as one: engines cache blocks of 16 tokens and more."""
PREFIX = 512
"""Bytes after the instructions that say which group of requests a request belongs to."""


def order_key(endpoint: str, body: Mapping[str, Any]) -> bytes:
    """Return a sort key that puts requests beside those with which they share the longest prefix.

    The key begins with a checksum of the model's name, because adapters share no prefix. Then it is a running checksum
    at each piece of the text: a sixteenth of its size, with equal prefixes where the texts have them.
    """
    entry = ENDPOINTS[endpoint]
    text = _json([*entry.leading_values(body), *entry.contents(body)])
    key, checksum = bytearray(zlib.crc32(str(body.get("model")).encode()).to_bytes(4)), 0
    for start in range(0, len(text), PIECE):
        checksum = zlib.crc32(text[start : start + PIECE], checksum)
        key += checksum.to_bytes(4)
    return bytes(key)


def prefix_key(endpoint: str, body: Mapping[str, Any]) -> bytes | None:
    """Return the key of requests that share this prefix; None if it is too short to matter.

    They share tools, system messages and the first PREFIX bytes that follow: a document, examples, or a conversation,
    whatever the question or the turn. If fewer bytes follow, tools and system messages alone are the key. Embeddings
    have none: engines cache no prefixes of them.
    """
    entry = ENDPOINTS[endpoint]
    if not entry.generates:
        return None
    prompt = body.get(entry.content_key(body))
    turns = prompt if isinstance(prompt, list) else [prompt]
    instructions = list(takewhile(_instructs, turns))
    shared, following = _json([*entry.leading_values(body), instructions]), _json(turns[len(instructions) :])
    if len(following) >= PREFIX:
        shared += following[:PREFIX]
    elif len(shared) < PREFIX:
        return None
    return hashlib.blake2b(shared, digest_size=16).digest()


def _json(value: list[Any]) -> bytes:
    """Return a value as JSON that begins alike where engines read alike. Media are compared as a whole."""
    return media.digested(json_lines.dumps(value, option=orjson.OPT_SORT_KEYS))


def _instructs(turn: object) -> bool:
    return isinstance(turn, dict) and turn.get("role") in ("system", "developer")


def fingerprint(endpoint: str, body: Mapping[str, Any]) -> bytes | None:
    """Return a digest (16 bytes) that requests with the same answer share.

    None if sampling is random, or if media come from a URL, where they may change. Null values and parameters without
    effect do not count. A negative seed asks for another answer each time, as in vLLM.
    """
    seed = body.get("seed")
    if ENDPOINTS[endpoint].generates and body.get("temperature") != 0 and (seed is None or seed < 0):
        return None
    if any(media.remote(body)):
        return None
    without_effect = ENDPOINTS[endpoint].without_effect
    parameters = {name: value for name, value in body.items() if value is not None and name not in without_effect}
    text = json_lines.dumps([endpoint, parameters], option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(text, digest_size=16).digest()
