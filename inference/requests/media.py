"""Media: the images, audio and videos that an engine would fetch from a URL in a request.

Whoever fetches stands inside the deployment's network, so a client's URL reaches what only that network can reach.
`data:` URLs are always allowed, and the domains that a model names in its `engine_args` as `allowed_media_domains`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from batchyard.models import ModelSpec
from batchyard.wording import quoted
from inference.engine import EngineAnswer

TEXTS = frozenset({"refusal", "text", "thinking"})
"""Keys of a content part whose texts no engine fetches."""
# Parsers of URLs differ in all else (users, backslashes, blanks), and an engine's is not this one.
_URL = re.compile(r"https?://([a-z0-9.-]+)(:[0-9]{1,5})?([/?#][!-\[\]-~]*)?", re.IGNORECASE | re.ASCII)


def remote(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the place and the URL of all media of a valid request that do not come with it."""
    for number, message in enumerate(body.get("messages") or ()):
        content = message.get("content")
        for index, part in enumerate(content if isinstance(content, list) else ()):
            pending = [(key, value) for key, value in part.items() if key not in TEXTS]
            while pending:
                key, value = pending.pop()
                if isinstance(value, dict):
                    pending += value.items()
                elif isinstance(value, list):
                    pending += ((key, entry) for entry in value)
                elif isinstance(value, str) and _is_remote(key, value):
                    yield f"messages[{number}].content[{index}]", value


def _is_remote(key: str, value: str) -> bool:
    if not value or value[:5].lower() == "data:":
        return False
    return key.endswith("url") or "://" in value


def allowed_domains(spec: ModelSpec) -> list[str]:
    """Return the domains that a model's engine may fetch media from, in lower case."""
    domains = spec.engine_args.get("allowed_media_domains")
    return [str(domain).lower() for domain in domains] if isinstance(domains, list | tuple) else []


def refusal(spec: ModelSpec, body: Mapping[str, Any]) -> EngineAnswer | None:
    """Return the answer to a request with media that the model's engine may not fetch, or None."""
    allowed = allowed_domains(spec)
    for place, url in remote(body):
        if not _is_allowed(url, allowed):
            message = (
                f"The media URL {quoted(url)} is not allowed here. Send the media as a data: URL, or name its domain "
                f"in engine_args.allowed_media_domains of the model {spec.name!r}."
            )
            return EngineAnswer.refused(message, param=place, code="media_not_allowed")
    return None


def _is_allowed(url: str, allowed: Collection[str]) -> bool:
    match = _URL.fullmatch(url)
    return match is not None and match[1].lower() in allowed
