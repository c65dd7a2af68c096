"""What is asked of a row: the system message, solved questions, and the question itself."""

import hashlib
from collections.abc import Mapping
from random import Random
from typing import Any

import orjson

from batchyard import json_lines
from batchyard.recipes import InvalidItem, Item, Messages, messages_of
from batchyard.tables.cells import CellError
from batchyard.tables.template import TemplateError, parsed
from recipes.evaluate.options import Evaluate
from recipes.options import column_of
from recipes.reports import as_text


def turns_of(example: Mapping[str, Any], options: Evaluate) -> Messages:
    """Return an example as turns of a chat. Raises InvalidItem if it lacks a column, or has no answer."""
    assert options.few_shot is not None
    answer = options.few_shot.answer
    if answer is not None:
        try:
            text = parsed(answer).fill(example)
        except (TemplateError, CellError) as error:
            raise InvalidItem("invalid_example", f"Its answer cannot be filled: {error}.") from None
    else:
        truth = column_of(example, options.ground_truth)
        if truth is None:
            raise InvalidItem("invalid_example", f"It has no column {options.ground_truth!r}.")
        text = as_text(truth)
    return [*messages_of(example, options.template), {"role": "assistant", "content": text}]


def content_of(item: Item, options: Evaluate) -> Messages:
    """Return what is asked: the system message, the examples, the question."""
    messages = item.chat()
    few_shot = options.few_shot
    if few_shot is None:
        return messages
    # All questions have the same examples in the same order, but none has itself.
    order = list(few_shot.examples)
    if few_shot.n is not None:
        order = Random(few_shot.seed).sample(order, len(order))
    examples = [example for example in order if dict(example) != dict(item.columns)][: few_shot.n]
    first = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))
    shots = [turn for example in examples for turn in turns_of(example, options)]
    return [*messages[:first], *shots, *messages[first:]]


def question_of(item: Item) -> str:
    """Return what a question is known by in another run: its custom_id if the row has one, else a hash of the row."""
    if item.columns.get("custom_id") is not None:
        return item.custom_id
    row = json_lines.dumps(dict(item.columns), option=orjson.OPT_SORT_KEYS, default=str)
    return hashlib.blake2b(row, digest_size=8).hexdigest()
