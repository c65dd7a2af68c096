"""The list of the items of a job."""

from __future__ import annotations

from tests.support.written_jobs import NUMBERS, TOTAL, Written


def test_the_list_says_of_each_item_where_it_is(written: Written) -> None:
    written.admitted(4)
    written.ask("argue", (2, 1, 0, 0), (3, 1, 0, 0))
    written.end((0, "completed"))
    written.end((1, "stuck"), error={"code": "judge_failed", "message": None})
    page, more = written.listed()
    assert not more
    assert [(item.number, item.custom_id, item.state, item.turn, item.stage, item.reason) for item in page] == [
        (0, "id-0", "stuck", 2, None, "judge_failed"),
        (1, "id-1", "live", None, "argue", None),
        (2, "id-2", "live", None, "argue", None),
        (3, "id-3", "completed", 2, None, None),
        (4, "id-4", "pending", None, None, None),
        (5, "id-5", "pending", None, None, None),
    ]


def test_the_list_has_question_answer_and_scores_of_each_item(written: Written) -> None:
    written.end((0, "completed"), text="So " * 200, samples=[{"score": 1.0}, {"score": 0}, {"error": {}}])
    page, _ = written.listed()
    assert [(item.question, item.answer, item.scores) for item in page if item.number in (0, NUMBERS[0])] == [
        ("Why 0?", None, []),
        (f"Why {NUMBERS[0]}?", ("So " * 200)[:297] + "...", [1.0, 0.0]),
    ]


def test_the_list_is_read_page_by_page_and_by_state_and_id(written: Written) -> None:
    written.end((0, "completed"), (1, "completed"), (4, "failed"))
    numbers: list[int] = []
    more, after = True, None
    while more:
        page, more = written.listed(limit=2, after=after)
        numbers += [item.number for item in page]
        after = numbers[-1]
    assert numbers == list(range(TOTAL))
    assert [item.number for item in written.listed(state="completed")[0]] == [0, 3]
    assert [item.number for item in written.listed(state="live", after=1)[0]] == [2, 4]
    assert [item.number for item in written.listed(custom_id="id-5")[0]] == [5]
    assert written.listed(custom_id="id-5", state="live") == ([], False)
    assert written.listed(custom_id="nobody") == ([], False)
