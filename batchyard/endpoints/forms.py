"""Forms that requests ask of their answers: JSON by a schema, one of some texts, a regular expression."""

import time
from collections.abc import Mapping
from typing import Any

import orjson

from batchyard import json_lines
from batchyard.comparing import patterns, schemas
from batchyard.endpoints import responses
from batchyard.endpoints.responses import mapping

MAY_ASK = r'"(response_format|structured_outputs|guided_\w+|output_config|output_format|format)"'
"""A regular expression that the JSON of each body matches that asks for a form."""
SCHEMA_BYTES = 64 * 1024
"""Of a larger schema an answer need only be JSON."""


def asked(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form that a body asks for: `json` with a schema, `choice` or `regex`; grammars are left out."""
    outputs = mapping(body.get("structured_outputs"))
    form = {kind: outputs.get(kind, body.get(f"guided_{kind}")) for kind in ("choice", "regex", "json")}
    if outputs.get("json_object"):
        form["json"] = {"type": "object"}
    places = [body.get("response_format"), body.get("output_format")]
    places += [mapping(body.get(key)).get("format") for key in ("text", "output_config")]
    for wanted in map(mapping, places):
        if wanted.get("type") == "json_object":
            form["json"] = {"type": "object"}
        elif wanted.get("type") == "json_schema":
            form["json"] = mapping(wanted.get("json_schema", wanted)).get("schema", {})
    return {kind: value for kind, value in form.items() if value is not None}


def has(form: Mapping[str, Any], text: str) -> bool:
    """True if a text has a form, or if that cannot be checked. Raises TimeoutError at `schemas.deadline`."""
    if isinstance(choices := form.get("choice"), list):
        return text in choices
    if isinstance(pattern := form.get("regex"), str):
        try:
            return patterns.compiled(pattern).fullmatch(text) is not None
        except patterns.InvalidPattern:
            return True
    if "json" not in form:
        return True
    try:
        value = json_lines.loads(text)
    except (orjson.JSONDecodeError, RecursionError):
        return False
    try:
        schema = form["json"] if isinstance(form["json"], str) else json_lines.dumps(form["json"]).decode()
        return len(schema) > SCHEMA_BYTES or schemas.first_violation(schemas.schema_of(schema), value) is None
    except TimeoutError:
        raise
    except Exception:  # noqa: BLE001  a schema that an engine may take, and we or jsonschema do not: no answer is lost for it
        return True


class Checks:
    """Checks whether answers have the form that was asked for, for so many seconds of CPU in all."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds

    def is_invalid(self, request: str, answer: str) -> bool:
        """True if an output lacks the form that the request asks for, and has neither refusal nor calls in its place.

        Raises TimeoutError, once: the seconds are over. From then on all count as valid.
        """
        if self._left <= 0 or not (form := asked(json_lines.loads(request))):
            return False
        started = time.thread_time()
        limit = schemas.deadline.set(started + self._left)
        try:
            outputs = responses.outputs((json_lines.loads(answer)["response"] or {}).get("body"))
            return any(not has(form, text) if (text := one.text or "").strip() else one.is_empty for one in outputs)
        finally:
            schemas.deadline.reset(limit)
            self._left -= time.thread_time() - started
