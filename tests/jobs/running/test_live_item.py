"""A live item waits for an outcome of each want of its turn, in any order."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from batchyard.recipes import Answer, Ask, Flow, Item, Options, Result, recipe
from batchyard.recipes.program import Program
from jobs.running.live_item import LiveItem


@recipe("twice", Options, stages=("ask",), loops=True)
def twice(item: Item, options: Options) -> Flow:
    """Ask three times, and then once."""
    first = yield [Ask("ask", item.chat(), model="echo") for _ in range(3)]
    yield [Ask("ask", item.chat(*(answer.text for answer in first)), model="echo")]
    return Result("done")


def live_item(*, sampled: bool) -> LiveItem:
    program = Program(twice, Options(), Item(1, "a", {"prompt": "x"}))
    return LiveItem(0, program, 0.0, 10, [] if sampled else None)


@given(st.permutations(range(3)), st.booleans())
def test_a_turn_is_complete_with_its_last_outcome_and_sent_in_the_order_of_its_wants(
    order: Sequence[int], sampled: bool
) -> None:
    live = live_item(sampled=sampled)
    wants = live.program.wants
    live.enter_turn()
    for taken, index in enumerate(order):
        assert live.missing == 3 - taken
        live.set_outcome(index, Answer(ok=True, text=str(index)))
    outcomes = live.take_turn()
    assert ([answer.text for answer in outcomes], live.missing, live.outcomes) == (["0", "1", "2"], 0, [])
    live.program.send(outcomes)
    live.enter_turn()
    assert (len(live.outcomes), live.missing, live.retries) == (1, 1, [0])
    assert live.history == ([(wants, outcomes)] if sampled else None)
