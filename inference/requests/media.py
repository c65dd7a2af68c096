"""Media: the images, audio and videos of a request, and whether an engine may fetch them from a URL.

Whoever fetches stands inside the deployment's network, so a client's URL reaches what only that network can reach.
`data:` URLs are always allowed, and the domains that a model names in its `engine_args` as `allowed_media_domains`.
For the same reason a request has no parameter that makes a server run code or connect to an address (REACHING), unless
`allowed_parameters` names it.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from batchyard.endpoints.base import ACCOUNT
from batchyard.models import ModelSpec
from batchyard.wording import quoted
from inference.engine import EngineAnswer

TEXTS = frozenset({"content", "description", "input", "instructions", "output", "reasoning", "reasoning_content"}) | {
    "refusal", "text", "thinking", "title",
}  # fmt: skip
"""Keys whose texts no engine fetches."""
MEDIA = frozenset({"audio", "file", "files", "image", "images", "video", "videos"})
"""Keys of a body whose texts are URLs."""
UNREAD = ACCOUNT | {"questions", "state", "structured_outputs"}
"""Keys of a body in which no engine looks for media."""
OFFERED = frozenset({"functions", "output_config", "output_format", "response_format", "text", "tools"})
"""Keys of a body that describe tools and answers. Their texts are no URLs; their schemas hold anything."""
SCHEMAS = frozenset({"input_schema", "parameters", "schema"})
QUOTED = frozenset({"annotations", "arguments", "citations"})
"""Keys of what a model wrote: arguments of tools, and sources."""
REACHING = frozenset({"chat_template", "kv_transfer_params", "mcp", "mcp_servers"})
"""Parameters by which a server runs code of a request or connects to addresses in it."""
MAX_PARTS = 10_000
"""Objects in a request, such as messages and content parts: each takes time of its checks, template and tokenizer."""
# Parsers of URLs differ in all else (users, backslashes, blanks), and an engine's is not this one.
_URL = re.compile(r"https?://([a-z0-9.-]+)(:[0-9]{1,5})?([/?#][!-\[\]-~]*)?", re.IGNORECASE | re.ASCII)

_ADDRESS = re.compile(r"://|^\s*[a-z][a-z0-9+.-]*:[/\\]", re.IGNORECASE)

_DATA = r'"data:[^"\\,]{0,200};base64,[^"\\]*"'
_DATA_TEXT, _DATA_BYTES = re.compile(_DATA), re.compile(_DATA.encode())


def without_data(text: str) -> str:
    """Return JSON without the media that it holds as data: URLs, of which no engine makes tokens by their size."""
    return _DATA_TEXT.sub("", text) if '"data:' in text else text


def digested(text: bytes) -> bytes:
    """Return JSON with a digest in place of each of its data: URLs: equal ones stay equal."""
    if b'"data:' not in text:
        return text
    return _DATA_BYTES.sub(lambda url: hashlib.blake2b(url[0], digest_size=16).hexdigest().encode(), text)


def remote(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield place and URL of a valid request's media that do not come with it."""
    for path, value in _values(body):
        if isinstance(value, str) and _is_remote(path, value):
            yield _place(path), value


def too_many_parts(body: Mapping[str, Any]) -> str | None:
    """Return why a body with more than MAX_PARTS objects is refused; None for another one."""
    pending: list[Any] = [value for key, value in body.items() if key not in UNREAD]
    parts = 0
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            parts += 1
            if parts > MAX_PARTS:
                return f"the request has more than {MAX_PARTS:,} messages and parts; join their texts"
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return None


def reaching(spec: ModelSpec, body: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the first of REACHING in a body that the model's operator has not allowed, as (param, message)."""
    allowed = spec.engine_args.get("allowed_parameters") or ()
    for path, value in _values(body):
        name = value if path[-1] == "type" and value == "mcp" else path[-1]
        if name in REACHING and name not in allowed:
            return f"body.{_named(path)}", f"{quoted(name)} is not allowed for the model {spec.name!r}"
    return None


def _values(body: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield the path and value of each entry of a body, except for tools' arguments, schemas and numbers."""
    pending: list[tuple[tuple[str | int, ...], Any]] = [((key,), body[key]) for key in body if key not in UNREAD]
    pending.reverse()
    while pending:
        path, value = pending.pop()
        if value is None:
            continue
        yield path, value
        entries: Iterable[tuple[str | int, Any]] = ()
        if isinstance(value, dict):
            skipped = (QUOTED | SCHEMAS) if path[0] in OFFERED else QUOTED
            if str(value.get("type")).endswith(("tool_use", "tool_call", "_call")):
                skipped |= {"action", "input"}
            entries = ((key, entry) for key, entry in value.items() if key not in skipped)
        elif isinstance(value, list):
            entries = ((index, entry) for index, entry in enumerate(value) if isinstance(entry, dict | list | str))
        pending += reversed([((*path, step), entry) for step, entry in entries])


def _is_remote(path: tuple[str | int, ...], value: str) -> bool:
    if not value or value[:5].lower() == "data:":
        return False
    names = [step for step in path if isinstance(step, str)]
    if names[-1].lower().endswith(("url", "uri")) or (len(names) == 1 and names[0] in MEDIA):
        return True
    if len(names) == 1 or names[-1] in TEXTS or names[0] in OFFERED:
        return False
    return _ADDRESS.search(value) is not None


def _place(path: tuple[str | int, ...]) -> str:
    """Return the place of a value, or of the content part that it is in."""
    for index, step in enumerate(path):
        if step in ("content", "output"):
            return _named(path[: index + 2] if isinstance(path[index + 1], int) else path[: index + 1])
    return _named(path)


def _named(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def allowed_domains(spec: ModelSpec) -> list[str]:
    """Return the domains that a model's engine may fetch media from, in lower case."""
    domains = spec.engine_args.get("allowed_media_domains")
    return [str(domain).lower() for domain in domains] if isinstance(domains, list | tuple) else []


def refusal(spec: ModelSpec, body: Mapping[str, Any]) -> EngineAnswer | None:
    """Return the answer to a request with media that the model's engine may not fetch, or None."""
    allowed = allowed_domains(spec)
    reachable = spec.engine_args.get("allowed_parameters") or ()
    for place, url in remote(body):
        parameter = "mcp" if place.endswith(".server_url") else re.split(r"[.\[]", place)[0]
        match = _URL.fullmatch(url)
        if (match is None or match[1].lower() not in allowed) and parameter not in reachable:
            message = (
                f"The media URL {quoted(url)} is not allowed here. Send the media as a data: URL, or name its domain "
                f"in engine_args.allowed_media_domains of the model {spec.name!r}."
            )
            return EngineAnswer.refused(message, param=place, code="media_not_allowed")
    return None
