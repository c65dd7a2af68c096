"""How many requests of batches an engine holds beside live ones."""

from __future__ import annotations

from inference.residents.batch_share import PEAK_SECONDS, QUIET_SECONDS, ROUND_SECONDS, BatchShare

FIRST, GAP = 1.0, 0.1


def share(places: int = 100) -> BatchShare:
    return BatchShare(places, 2 * places, FIRST, GAP)


def rounds(policy: BatchShare, number: int, gap: float, inside: int, begin: float = 0.0) -> float:
    """Measure gaps for so many rounds, and return the time at their end."""
    now = begin
    for _ in range(number):
        policy.live(now, 1)
        policy.measured(now, "gap", gap, inside, beginning=lambda: inside)
        now += ROUND_SECONDS
    return now


def test_without_live_traffic_batches_have_more_than_the_whole_engine() -> None:
    assert share().limit(0.0) == 200


def test_with_it_they_leave_the_places_that_live_requests_needed_lately() -> None:
    policy = share()
    policy.live(0.0, 30)
    policy.live(1.0, 5)
    assert policy.limit(1.0) == 70
    assert policy.limit(PEAK_SECONDS) == 70
    assert policy.limit(PEAK_SECONDS + 1.5) == 95, "what was needed long ago is not kept free"
    assert policy.limit(100.0) == 95, "those inside keep their places, however long they take"


def test_batches_go_on_after_a_peak_that_took_all_places() -> None:
    policy = share()
    policy.live(0.0, 1000)
    policy.live(1.0, 5)
    assert policy.limit(1.0) == 0
    assert policy.limit(PEAK_SECONDS + 1.5) == 95


def test_an_engine_with_bounded_steps_has_no_limit_beside_the_places_of_live_requests() -> None:
    policy = BatchShare(100, 200, FIRST, GAP, bounded=True)
    now = rounds(policy, 20, 2 * GAP, inside=99)
    assert policy.limit(now) == policy.beginning_limit(now) - 1 == 99


def test_places_are_given_back_when_the_traffic_has_ended() -> None:
    policy = share()
    policy.live(0.0, 30)
    policy.live(1.0, 0)
    assert policy.limit(QUIET_SECONDS - 1) == 100
    assert policy.limit(QUIET_SECONDS + 1.1) == 200


def test_more_live_requests_than_places_leave_none_to_batches() -> None:
    policy = share()
    policy.live(0.0, 10_000)
    assert policy.limit(0.0) == 0


def test_fewer_batch_requests_begin_at_a_time_while_live_tokens_come_late() -> None:
    policy = share()
    assert policy.beginning_limit(0.0) == 200
    now = rounds(policy, 4, 2 * GAP, inside=99)
    assert 1 < policy.beginning_limit(now) < 40
    assert policy.limit(now) == 99, "as many may be there"
    now = rounds(policy, 14, 2 * GAP, inside=99, begin=now)
    assert policy.beginning_limit(now) == 1, "one at least"
    assert policy.limit(now) < 99


def test_where_one_begins_at_a_time_batches_shrink_and_all_grows_again_when_tokens_come_in_time() -> None:
    policy = share()
    now = rounds(policy, 30, 2 * GAP, inside=99)
    shrunk = policy.limit(now)
    assert 1 <= shrunk < 40
    now = rounds(policy, 1, GAP / 2, inside=shrunk, begin=now)
    assert policy.limit(now) > shrunk and policy.beginning_limit(now) == 1, "places come first"
    for _ in range(200):
        now = rounds(policy, 1, GAP / 2, inside=policy.limit(now), begin=now)
    assert (policy.limit(now), policy.beginning_limit(now)) == (99, 100)
    assert policy.beginning_limit(now + QUIET_SECONDS + 1) == 100, "one live request is inside"
    policy.live(now, 0)
    assert policy.beginning_limit(now + QUIET_SECONDS + 1) == 200


def test_one_late_token_among_many_changes_nothing() -> None:
    policy = share()
    policy.live(0.0, 1)
    policy.measured(0.0, "gap", GAP / 2, 99, times=100)
    policy.measured(ROUND_SECONDS, "gap", 2 * GAP, 99)
    assert (policy.limit(ROUND_SECONDS), policy.beginning_limit(ROUND_SECONDS)) == (99, 100)


def test_late_first_tokens_count_as_late_gaps_do() -> None:
    policy = share()
    policy.live(10.0, 1)
    policy.measured(10.0, "first", 2 * FIRST, 99, beginning=lambda: 4)
    assert policy.beginning_limit(10.0) < 4


def test_batches_keep_one_place_however_late_live_tokens_are() -> None:
    policy = share()
    now = rounds(policy, 100, 10 * GAP, inside=1)
    assert (policy.limit(now), policy.beginning_limit(now)) == (1, 1)
