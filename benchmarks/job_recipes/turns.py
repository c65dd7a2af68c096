"""A gate for benchmarks: recipe `refine` asks for each item as often as its row has `lengths`, for so many tokens.

The engine is `echo`, so an answer is as long as the last message, and that is what this gate says of the answer before.
"""

from __future__ import annotations

from batchyard.recipes import Failure, Item, gate

CATEGORY = "again"
ADDED = 2
"""Words that `refine` puts before the message of a failure: a dash, and the category."""


def message(name: str, turn: int, words: int) -> str:
    """Return a text of so many words, 2 or more: an item's name, its turn from 1, and the letter x."""
    return f"{name} {turn} " + "x " * (words - 2)


@gate("turns")
def turns(text: str, item: Item, value: object) -> Failure | None:
    """Fail an answer unless it is that of the item's last turn."""
    lengths = item.columns["lengths"]
    turn = int(text.partition(f"{item.custom_id} ")[2].split(maxsplit=1)[0])
    if turn == len(lengths):
        return None
    return Failure(CATEGORY, message(item.custom_id, turn + 1, lengths[turn] - ADDED))
