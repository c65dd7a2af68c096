"""A recipe for benchmarks: each item asks in one stage after the other, for as many tokens as its row says."""

from __future__ import annotations

from pydantic import Field

from batchyard.recipes import Ask, Flow, Item, Options, Result, Stage, recipe


class Chain(Options):
    """Options of recipe chain."""

    model: str
    depth: int = Field(3, ge=1, description="Stages, one after the other")


def _stages(options: Chain) -> list[Stage]:
    return [Stage(f"stage-{number}") for number in range(options.depth)]


@recipe("chain", Chain, _stages, expected=lambda options: [1.0] * options.depth)
def chain(item: Item, options: Chain) -> Flow:
    """Ask in every stage in turn, `lengths` tokens each."""
    text = ""
    for number, tokens in enumerate(item.columns["lengths"][: options.depth]):
        (answer,) = yield [
            Ask(f"stage-{number}", item.chat(f"{item.custom_id} {text[:20]}"), model=options.model, max_tokens=tokens)
        ]
        text = answer.text
    return Result(text=text)
