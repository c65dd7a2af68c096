"""Which children of a composite start, whatever the order in which they end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from batchyard.recipes import Child
from jobs.kinds.plan import plan

ENDS = st.sampled_from(["completed", "completed", "completed", "failed", "expired", "cancelled"])


def children(variants: int, repeats: int = 1, rounds: int = 1) -> list[Child]:
    return [
        Child(f"v{variant}", repeat, number, "rollout", {}, "best.jsonl" if number else None)
        for number in range(rounds)
        for repeat in range(repeats)
        for variant in range(variants)
    ]


def different(wanted: list[Child]) -> dict[str, str]:
    return {child.key: child.key for child in wanted}


@given(st.data())
def test_each_child_starts_once_or_never_can_whatever_ends_when(data: st.DataObject) -> None:
    numbers = (st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
    wanted = children(*(data.draw(number) for number in numbers))
    alike = data.draw(st.booleans())
    works = {child.key: f"{child.repeat}/{child.round}" if alike else child.key for child in wanted}
    parallel = data.draw(st.none() | st.integers(1, 3))
    statuses: dict[str, str] = {}
    started: list[str] = []
    never: list[str] = []
    while len(started) + len(never) < len(wanted) or "in_progress" in statuses.values():
        chosen = plan(wanted, statuses, works, parallel)
        for start in chosen.starts:
            if data.draw(st.booleans()):  # what a kill has left undone is planned again
                break
            started.append(start.child.key)
            statuses[start.child.key] = "in_progress"
            assert start.child.before is None or statuses[start.child.before] == "completed"
            assert start.source is None or statuses[start.source] == "completed"
        never += chosen.never
        statuses |= dict.fromkeys(chosen.never, "failed")
        running = [key for key, status in statuses.items() if status == "in_progress"]
        assert parallel is None or len(running) <= parallel
        assert len({works[key] for key in running}) == len(running)
        if running:
            statuses[data.draw(st.sampled_from(running))] = data.draw(ENDS)
    assert sorted(started + never) == sorted(child.key for child in wanted)


def test_a_later_round_waits_for_the_one_before_and_never_starts_behind_one_that_failed() -> None:
    wanted = children(2, rounds=3)
    works = different(wanted)
    assert [start.child.key for start in plan(wanted, {}, works).starts] == ["v0/0/0", "v1/0/0"]
    chosen = plan(wanted, {"v0/0/0": "completed", "v1/0/0": "failed"}, works)
    assert [start.child.key for start in chosen.starts] == ["v0/0/1"]
    assert chosen.never == ["v1/0/1", "v1/0/2"]


def test_of_children_with_the_same_requests_the_second_takes_the_answers_of_the_first() -> None:
    wanted = children(3)
    works = {"v0/0/0": "a", "v1/0/0": "a", "v2/0/0": "b"}
    assert [start.child.key for start in plan(wanted, {}, works).starts] == ["v0/0/0", "v2/0/0"]
    (second,) = plan(wanted, {"v0/0/0": "completed", "v2/0/0": "in_progress"}, works).starts
    assert (second.child.key, second.source) == ("v1/0/0", "v0/0/0")
    (alone,) = plan(wanted, {"v0/0/0": "failed", "v2/0/0": "in_progress"}, works).starts
    assert (alone.child.key, alone.source) == ("v1/0/0", None)
