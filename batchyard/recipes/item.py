"""A row of a job's input, as a recipe sees it."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any, TypeAlias

from batchyard.recipes.outcomes import Result
from batchyard.tables import images
from batchyard.tables.cells import CellError, is_empty, text
from batchyard.tables.template import TemplateError, parsed

Messages: TypeAlias = list[dict[str, Any]]


class InvalidItem(ValueError):
    """A row that is no item. `code` is one of the codes of bad rows: missing_prompt, invalid_messages, no_reward, …."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def field_of(columns: Any, path: str) -> Any:
    """Return the value at a dotted path of a row: `reward_model.ground_truth`. Raises KeyError if it has none."""
    value = columns
    for name in path.split("."):
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            raise KeyError(path)
    return value


def messages_of(columns: Mapping[str, Any], template: str | None = None) -> Messages:
    """Return the messages of a row: column `messages`, else `prompt` (a list or a string), else the template.

    The first two have the images of the row's columns in their places, see `batchyard.tables.images`.

    Raises InvalidItem: there is none, or it is no list of messages.
    """
    for name in ("messages", "prompt"):
        value = columns.get(name)
        if not is_empty(value) or (template is None and name == "prompt" and name in columns):
            try:
                is_list = not isinstance(value, str | None)
                content = _messages(name, value) if is_list else [{"role": "user", "content": text(value, name)}]
                return images.attached(content, columns)
            except CellError as error:
                raise InvalidItem(error.code, f"The row cannot be asked: {error}.") from None
    if template is None:
        present = ", ".join(columns) or "none"
        raise InvalidItem("missing_prompt", f"The row has no column 'messages' or 'prompt'; its columns: {present}.")
    try:
        return [{"role": "user", "content": parsed(template).fill(columns)}]
    except TemplateError as error:
        raise InvalidItem("invalid_template", f"The template has {error}.") from None
    except CellError as error:
        code = "missing_prompt" if error.code == "missing_column" else error.code
        raise InvalidItem(code, f"The template cannot be filled: {error}.") from None


def _messages(column: str, value: Any) -> Messages:
    messages = list(value) if isinstance(value, Sequence) else None
    if not messages:
        raise InvalidItem("invalid_messages", f"'{column}' is neither a text nor a list of messages.")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidItem("invalid_messages", f"'{column}[{index}]' is no message with a 'role'.")
    return [dict(message) for message in messages]


@dataclass(frozen=True)
class Item:
    """A row of a job's input."""

    number: int  # row of the input, from 1
    custom_id: str  # of the column of that name, else `item-<number>`
    columns: Mapping[str, Any]
    total: int = 1
    # 1, and one more for each time that it began again: a person has put it back, or its recipe has changed
    life: int = 1
    hint: str | None = None  # what that person said to it
    job_seed: int = 0
    system: str | None = None
    template: str | None = None

    @cached_property
    def messages(self) -> Messages:
        """The item's own messages, see `messages_of`."""
        return messages_of(self.columns, self.template)

    def chat(self, *texts: str) -> Messages:
        """Return the system message, the item's messages, the hint, and each text as a message of the user."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        added = [text for text in (self.hint, *texts) if text is not None]
        return [*system, *self.messages, *({"role": "user", "content": text} for text in added)]

    def seed(self, *parts: str | int) -> int:
        """Return a seed of 53 bits from the job's seed, custom_id, parts and life."""
        life: tuple[str | int, ...] = () if self.life == 1 else ("life", self.life)
        parts_json = json.dumps(
            [self.job_seed, self.custom_id, *life, *parts], ensure_ascii=False, separators=(",", ":")
        )
        digest = hashlib.blake2b(parts_json.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 11

    def random(self, *parts: str | int) -> Random:
        """Return a generator of random numbers, seeded with `seed("random", *parts)`."""
        return Random(self.seed("random", *parts))

    def failed(self, code: str, message: str | None = None, **values: Any) -> Result:
        """Return the result of an item that failed, with a code of the recipe's own."""
        return Result(**values).ended_as("failed", {"code": code, "message": message})

    def stuck(self, reason: str, message: str | None = None, **values: Any) -> Result:
        """Return the result of an item that needs a person."""
        return Result(**values).ended_as("stuck", {"code": reason, "message": message})
