"""Gates over JSON in the text: is-json, contains-json. Both may have a JSON schema as their value."""

import json
from collections.abc import Iterator
from typing import Any

import orjson

from batchyard import json_lines
from batchyard.comparing.schemas import first_violation, schema_of
from batchyard.recipes import Failure, Item, gate

_DECODER = json.JSONDecoder()


@gate("is-json", schema_of)
def is_json(text: str, item: Item, value: Any) -> Failure | None:
    """Pass a text that is JSON as a whole, and follows the schema."""
    try:
        content = json_lines.loads(text)
    except orjson.JSONDecodeError as error:
        return Failure("is-json", f"The answer is not JSON: {error}.")
    violation = first_violation(schema_of(value), content)
    return None if violation is None else Failure("is-json", f"The JSON does not follow the schema: {violation}.")


@gate("contains-json", schema_of)
def contains_json(text: str, item: Item, value: Any) -> Failure | None:
    """Pass a text with a JSON object or list somewhere that follows the schema."""
    validator, violation = schema_of(value), None
    for content in _contents(text):
        violation = first_violation(validator, content)
        if violation is None:
            return None
    if violation is None:
        return Failure("contains-json", "The answer contains no JSON object or list.")
    return Failure("contains-json", f"The JSON in the answer does not follow the schema: {violation}.")


def _contents(text: str) -> Iterator[Any]:
    """Yield the JSON objects and lists in a text, those within others left out."""
    position = 0
    while position < len(text):
        if text[position] in "{[":
            try:
                content, position = _DECODER.raw_decode(text, position)
            except (ValueError, RecursionError):
                position += 1
            else:
                yield content
        else:
            position += 1


GATES = (is_json, contains_json)
