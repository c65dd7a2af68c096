"""Recipe refine: who is asked what, what is accepted, and what a person gets to see."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchyard.recipes import Answer, Ask, Check, EndedItem, Item, Reply, Report, Wait
from batchyard.recipes.program import Request
from recipes.refine.flow import refine
from recipes.refine.options import Refine
from tests.support.played import PlayedResults, finished, played

FAILURE = Answer(ok=False, error={"code": "request_timeout", "message": "It took too long."}, status_code=408)
ROW = {"custom_id": "sum", "prompt": "What is 37 + 58?", "answer": "95"}
RIGHT = ["equals:{{answer}}"]


def options(**values: Any) -> Refine:
    chosen = Refine(**{"tiers": ["nano", "mini"], **values})
    assert refine.check is not None
    refine.check(chosen)
    return chosen


class Run:
    """What one item has asked, and how it ended."""

    def __init__(
        self,
        chosen: Refine,
        answers: Mapping[str, Sequence[Answer | str]],
        row: Mapping[str, Any] = ROW,
        reply: Callable[[Item, Wait], Reply] | None = None,
    ) -> None:
        """`answers` are those of each stage in their order; the last one is given again and again."""
        self.requests: list[Request] = []
        self.options = chosen

        def answer(item: Item, request: Request) -> Answer | str:
            self.requests.append(request)
            given = answers[request.stage]
            return given[min(len(self.stage(request.stage)), len(given)) - 1]

        self.results = played(refine, [row], chosen, answer, reply=reply)
        self.ended: EndedItem = self.results.ended[0]

    def stage(self, name: str) -> list[Request]:
        return [request for request in self.requests if request.stage == name]

    @property
    def history(self) -> list[dict[str, Any]]:
        history: list[dict[str, Any]] = self.ended.result["history"]
        return history

    @property
    def way(self) -> list[tuple[Any, ...]]:
        """Tier, category and what followed, of each attempt."""
        return [(attempt["tier"], attempt["category"], attempt["then"]) for attempt in self.history]

    def report(self) -> Report:
        return finished(refine, self.results, self.options)


def texts(request: Request) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in request.body["messages"]]


# Gates and tiers


def test_an_answer_that_passes_its_gates_is_accepted_at_once() -> None:
    run = Run(options(gates=RIGHT), {"answer": ["95"]})
    run.report()
    assert run.results.lines("done.jsonl") == [
        {
            "custom_id": "sum",
            "number": 0,
            "text": "95",
            "tier": 1,
            "model": "nano",
            "attempts": 1,
            "votes": None,
            "resolved_by": None,
        }
    ]
    assert run.results.artifacts["stuck.jsonl"] == b""
    assert texts(run.requests[0]) == [("user", "What is 37 + 58?")]


def test_a_retry_sees_its_answer_and_every_failure() -> None:
    chosen = options(gates=["is-json", {"gate": "contains", "value": "x", "category": "style"}], mode="comprehensive")
    run = Run(chosen, {"answer": ["no", '"x"']})
    assert texts(run.requests[1]) == [
        ("user", "What is 37 + 58?"),
        (
            "user",
            "Your answer:\n\nno\n\nIt was not accepted:\n\n"
            "- is-json: The answer is not JSON: invalid literal, expected 'null': line 1 column 1 (char 0).\n"
            "- style: The answer does not contain 'x'.\n\n"
            "Answer again. Write the whole answer and nothing else.",
        ),
    ]
    assert run.way == [(1, "is-json", "retry"), (1, None, "accepted")]


def test_the_next_tier_gets_the_task_and_the_last_feedback() -> None:
    run = Run(options(gates=["contains:x"]), {"answer": ["a", "b", "x"]})
    assert run.way == [(1, "contains", "retry"), (1, "contains", "escalate"), (2, None, "accepted")]
    assert run.history[1]["reason"] == "repeat"
    last = run.requests[-1]
    assert last.model == "mini"
    assert texts(last) == [
        ("user", "What is 37 + 58?"),
        ("user", "An earlier answer was not accepted:\n\n- contains: The answer does not contain 'x'."),
    ]
    assert (run.ended.result["tier"], run.ended.result["model"]) == (2, "mini")


def test_without_feedback_every_tier_is_asked_as_if_it_were_the_first() -> None:
    run = Run(options(gates=RIGHT, feedback=False, sampling={"temperature": 0}), {"answer": ["1", "2", "95"]})
    bodies = [{name: value for name, value in request.body.items() if name != "model"} for request in run.requests]
    assert bodies[0] == bodies[1] == bodies[2]


def test_the_first_failure_ends_the_gates_unless_all_are_wanted() -> None:
    gates = ["contains:x", "contains:y", "is-json", "equals:z"]
    fast = Run(options(gates=gates, tiers=["nano"]), {"answer": ["x!", "z"]})
    assert [len(attempt["failures"]) for attempt in fast.history[:2]] == [1, 1]
    assert [attempt["category"] for attempt in fast.history[:2]] == ["contains", "contains"]
    every = Run(options(gates=gates, tiers=["nano"], mode="comprehensive"), {"answer": ["!"]})
    assert [failure["category"] for failure in every.history[0]["failures"]] == [
        *("contains", "contains", "is-json", "equals")
    ]
    assert every.way == [(1, "contains", "stuck")] and every.history[0]["reason"] == "failures"


def test_gates_look_at_what_is_known_of_an_answer_beside_its_text() -> None:
    cut = Answer(ok=True, text="95", finish_reason="length", seconds=0.2)
    slow = Answer(ok=True, text="95", finish_reason="stop", seconds=3.0)
    good = Answer(ok=True, text="95", finish_reason="stop", seconds=0.2)
    run = Run(
        options(gates=["finish-reason:stop", "latency:1s"], policy={"unchanged": 9}), {"answer": [cut, slow, good]}
    )
    assert [category for _, category, _ in run.way] == ["finish-reason", "latency", None]


def test_a_request_without_an_answer_is_an_attempt_and_is_asked_again_as_it_was() -> None:
    run = Run(options(gates=RIGHT), {"answer": [FAILURE, "95"]})
    assert run.way == [(1, "request_timeout", "retry"), (1, None, "accepted")]
    assert texts(run.requests[1]) == texts(run.requests[0])
    assert run.requests[1].seed != run.requests[0].seed


def test_an_item_without_any_answer_has_failed_and_one_with_a_wrong_answer_is_stuck() -> None:
    lost = Run(options(gates=RIGHT), {"answer": [FAILURE]})
    assert lost.ended.state == "failed"
    assert lost.ended.error == {"code": "no_answer", "message": "It took too long."}
    wrong = Run(options(gates=RIGHT), {"answer": ["94", FAILURE]})
    assert (wrong.ended.state, wrong.ended.error) == (
        "stuck",
        {"code": "repeat", "message": "The last attempts of the last tier failed for one reason."},
    )
    wrong.report()
    (line,) = wrong.results.lines("stuck.jsonl")
    assert (line["custom_id"], line["reason"], line["text"], line["history"]) == ("sum", "repeat", "94", wrong.history)


def test_the_same_answer_three_times_is_for_a_person_whoever_gives_it() -> None:
    run = Run(options(gates=["contains:x"]), {"answer": ["a"]})
    assert [(tier, then) for tier, _, then in run.way] == [(1, "retry"), (1, "escalate"), (2, "stuck")]
    assert run.history[-1]["reason"] == "no_change"


def test_a_tier_has_a_budget_and_sampling_of_its_own() -> None:
    tiers = [{"model": "nano", "budget": 1, "sampling": {"temperature": 0, "max_tokens": 8}}, "mini"]
    run = Run(options(tiers=tiers, gates=RIGHT, sampling={"temperature": 0.5}), {"answer": ["1", "95"]})
    assert [attempt["reason"] for attempt in run.history] == ["budget", None]
    first, second = (request.body for request in run.requests)
    assert (first["temperature"], first["max_tokens"], second["temperature"]) == (0, 8, 0.5)
    assert options(tiers=[*tiers, "big"]).budgets == [1, 6, 6]


def test_answers_are_held_to_a_form() -> None:
    schema = {"type": "object"}
    run = Run(options(structure={"json": schema}, reviewer="big"), {"answer": ["{}"], "review": ["PASS"]})
    assert [request.structure for request in run.requests] == [{"json": schema}, {}]


def test_the_hint_of_a_person_reaches_the_writer_and_not_the_reviewer() -> None:
    item = Item(0, "a", ROW, life=2, hint="Think of the carry.")
    flow = refine.function(item, options(reviewer="big", probes=0))
    (asked,) = next(flow)  # type: ignore[misc]
    assert isinstance(asked, Ask) and asked.content[-1]["content"] == "Think of the carry."
    (review,) = flow.send([Answer(ok=True, text="95")])  # type: ignore[misc]
    assert isinstance(review, Ask) and "carry" not in json.dumps(review.content)


def test_the_items_that_the_second_tier_gets_are_exactly_those_that_the_first_one_fails() -> None:
    rows = [{"prompt": f"{number} + 1 =", "answer": str(number + 1)} for number in range(60)]

    def right(model: str, number: int) -> bool:
        return number % 3 == 0 if model == "nano" else number % 2 == 0

    asked: dict[str, list[int]] = {"nano": [], "mini": []}

    def answer(item: Item, request: Request) -> str:
        asked[request.model].append(item.number)
        return str(item.number + 1) if right(request.model, item.number) else "?"

    tiers = [{"model": model, "budget": 1} for model in ("nano", "mini")]
    chosen = options(tiers=tiers, gates=RIGHT, feedback=False, sampling={"temperature": 0})
    results = played(refine, rows, chosen, answer)
    report = finished(refine, results, chosen)
    correct = {model: {number for number in range(60) if right(model, number)} for model in asked}
    assert {line["number"] for line in results.lines("done.jsonl")} == correct["nano"] | correct["mini"]
    assert asked == {"nano": list(range(60)), "mini": sorted(set(range(60)) - correct["nano"])}
    assert {line["number"] for line in results.lines("stuck.jsonl")} == set(asked["mini"]) - correct["mini"]
    metrics = report.metrics
    assert metrics["tiers"]["1"]["pass_rate"]["mean"] == 20 / 60
    assert metrics["tiers"]["2"]["pass_rate"]["n"] == 40
    assert metrics["tiers"]["2"]["requests_per_accepted"] == 40 / metrics["tiers"]["2"]["accepted"]
    assert (metrics["escalations"], metrics["stuck_by_reason"]) == ({"budget": 40}, {"budget": metrics["stuck"]})


# Votes


def voting(*answers: str, first: str = "95", **votes: Any) -> Run:
    """Run an item with voters `a`, `b`, …, who say these answers."""
    models = [chr(ord("a") + index) for index in range(len(answers))]
    chosen = options(votes={"models": models, "extract": "last_number", **votes}, policy={"repeat": 9})
    return Run(chosen, {"answer": [first], "vote": answers, "arbiter": ["2"]})


def test_answers_of_one_value_are_one_vote() -> None:
    run = voting(" 95.", "95.0", strategy="unanimous")
    assert (run.ended.state, run.ended.result["text"], run.ended.result["votes"]) == ("completed", "95", {"95": 3.0})


def test_the_first_voter_of_the_answer_that_wins_gives_the_text() -> None:
    run = voting("It is 96.", "96", first="95")
    assert (run.ended.result["text"], run.ended.result["model"]) == ("It is 96.", "a")
    assert run.ended.result["votes"] == {"95": 1.0, "96": 2.0}


def test_voters_see_the_task_and_nothing_of_the_answer() -> None:
    run = voting("95", "96")
    assert [texts(request) for request in run.stage("vote")] == [texts(run.requests[0])] * 2


def test_an_answer_that_wins_by_votes_has_to_pass_the_gates_too() -> None:
    chosen = options(
        gates=["not-contains:6"], votes={"models": ["a", "b"], "extract": "last_number"}, policy={"unchanged": 9}
    )
    run = Run(chosen, {"answer": ["95", "95"], "vote": ["96", "96", "95", "94"]})
    assert run.way == [(1, "not-contains", "retry"), (1, None, "accepted")]
    assert (run.history[0]["text"], run.ended.result["text"]) == ("96", "95")


def test_a_tie_goes_to_the_arbiter_who_sees_texts_without_names() -> None:
    run = voting("96", arbiter="big")
    (asked,) = run.stage("arbiter")
    assert (asked.structure, asked.body["temperature"]) == ({"choice": ["1", "2"]}, 0.0)
    (_, task), (_, text) = texts(asked)
    assert task == "What is 37 + 58?" and "[1] 95\n\n[2] 96" in text and "nano" not in text
    assert run.ended.result["text"] == "96"


def test_a_tie_without_an_arbiter_or_with_one_that_chooses_nothing_is_for_a_person() -> None:
    alone = voting("96")
    assert (alone.ended.state, alone.ended.error) == (
        "stuck",
        {"code": "tie", "message": "2 answers have as many votes."},
    )
    assert alone.way == [(1, "tie", "stuck")]
    chosen = options(
        votes={"models": ["a"], "extract": "last_number", "arbiter": {"model": "big", "structured": False}}
    )
    for said in ("3", "neither", FAILURE):
        run = Run(chosen, {"answer": ["95"], "vote": ["96"], "arbiter": [said]})
        assert (run.ended.error or {})["code"] == "tie"
        assert run.stage("arbiter")[0].structure == {}


def test_voters_who_do_not_agree_are_a_failure_with_what_they_said() -> None:
    run = voting("96", "95", strategy="unanimous")
    assert run.history[0]["failures"] == [
        {"category": "no_agreement", "message": "The models do not agree: '95' 2, '96' 1."}
    ]
    assert run.history[0]["then"] == "retry"


def test_weights_decide_if_the_strategy_says_so() -> None:
    run = voting("96", "95", strategy="weighted", weights={"a": 2.5})
    assert (run.ended.result["text"], run.ended.result["votes"]) == ("96", {"95": 2.0, "96": 2.5})


def test_a_voter_without_an_answer_has_no_vote() -> None:
    chosen = options(votes={"models": ["a", "b"], "extract": "last_number"})
    run = Run(chosen, {"answer": ["95"], "vote": [FAILURE, "none"]})
    assert run.ended.result["votes"] == {"95": 1.0}


# The reviewer


@pytest.mark.parametrize(
    ("review", "accepted", "unreadable"),
    [
        ("PASS", True, 0),
        ("PASS\nIt is right.", True, 0),
        ("FAIL\nThe carry is missing.", False, 0),
        ("FAIL", False, 0),
        ("Pass", False, 1),
        ("PASS.", False, 1),
        (" PASS", False, 1),
        ("The answer is right.\nPASS", False, 1),
        ("", False, 1),
    ],
)
def test_only_a_first_line_of_pass_accepts(review: str, accepted: bool, unreadable: int) -> None:
    run = Run(options(reviewer="big", tiers=[{"model": "nano", "budget": 1}]), {"answer": ["95"], "review": [review]})
    assert (run.ended.state == "completed") is accepted
    metrics = run.report().metrics
    assert (metrics["reviews"], metrics["review_unreadable"]) == (1, unreadable)
    if not accepted:
        assert run.history[0]["category"] == "review"


def test_the_remark_of_a_reviewer_reaches_the_writer() -> None:
    run = Run(options(reviewer="big"), {"answer": ["85", "95"], "review": ["FAIL\nThe carry is missing.", "PASS"]})
    assert "- review: The carry is missing." in texts(run.stage("answer")[1])[-1][1]
    assert run.ended.state == "completed"


def test_without_a_review_only_a_person_can_go_on() -> None:
    run = Run(options(reviewer="big"), {"answer": ["95"], "review": [FAILURE]})
    assert run.ended.error == {"code": "review_failed", "message": "There is no review: It took too long."}
    assert run.way == [(1, "review_failed", "stuck")]


SECRET = st.text("abcdefghijklmnop", min_size=8, max_size=12)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_reviewer_sees_nothing_of_the_writer(data: st.DataObject) -> None:
    secrets = data.draw(st.lists(SECRET, min_size=7, max_size=7, unique=True), "secrets")
    system, own_system, first, second, category, gate, hint = (f"<{secret}>" for secret in secrets)
    chosen = options(
        tiers=[first, {"model": second, "budget": 3}],
        system=system,
        gates=[{"gate": "contains", "value": gate, "category": category}],
        reviewer="big",
        mode=data.draw(st.sampled_from(["fail_fast", "comprehensive"]), "mode"),
        prompts={"escalate": "Tier: {feedback}", "retry": "Again: {feedback}"},
    )
    row = {"messages": [{"role": "system", "content": own_system}, {"role": "user", "content": "What is 37 + 58?"}]}
    answers = data.draw(st.lists(st.sampled_from(["94", f"95 {gate}"]), min_size=1, max_size=5), "answers")
    reviews = data.draw(st.lists(st.sampled_from(["PASS", "FAIL\nno", "?"]), min_size=1, max_size=5), "reviews")
    run = Run(chosen, {"answer": [*answers, f"95 {gate}"], "review": reviews}, row)
    for review in run.stage("review"):
        body = json.dumps(review.body).replace(f"95 {gate}", "")  # the answer itself
        assert not any(secret in body for secret in (system, own_system, first, second, category, gate, hint))
        assert not any(word in body for word in ("Tier", "Again", "not accepted"))
        assert set(review.body) == {"model", "messages", "temperature"}


# The reviewer is reviewed


def reviewed(review: Callable[[str], str], count: int = 100, **values: Any) -> tuple[PlayedResults, Report]:
    """Run rows whose answers are right through a reviewer, who is shown the task and an answer."""
    chosen = options(tiers=["nano"], reviewer={"model": "big", "prompt": "{answer}"}, **values)
    rows = [{"prompt": f"{number} + 1 ="} for number in range(count)]

    def answer(item: Item, request: Request) -> str:
        if request.stage == "answer":
            return str(item.number + 1)
        return review("|".join(content for _, content in texts(request)))

    results = played(refine, rows, chosen, answer)
    return results, finished(refine, results, chosen)


def right(shown: str) -> str:
    task, _, answer = shown.partition("|")
    return "PASS" if int(task.split()[0]) + 1 == int(answer) else "FAIL"


def test_a_reviewer_that_passes_everything_is_found_out() -> None:
    results, report = reviewed(lambda shown: "PASS")
    rate = report.metrics["catch_rate"]
    assert rate["mean"] == 0.0 and rate["n"] >= 10
    ((code, message),) = report.warnings
    assert code == "reviewer_agrees"
    assert message.startswith(
        f"The reviewer has failed 0 of {rate['n']} known-wrong answers; the interval of its catch"
    )
    assert len(results.lines("done.jsonl")) == 100


def test_a_reviewer_that_catches_wrong_answers_is_not_warned_of() -> None:
    results, report = reviewed(right)
    rate = report.metrics["catch_rate"]
    assert (rate["mean"], report.warnings) == (1.0, [])
    assert rate["intervals"]["mean"][0] > 0.5
    assert len(results.lines("done.jsonl")) == 100


def test_nothing_of_a_probe_changes_what_becomes_of_its_item() -> None:
    with_probes, _ = reviewed(right, probes=1)
    without, report = reviewed(right, probes=0)
    assert with_probes.artifacts["done.jsonl"] == without.artifacts["done.jsonl"]
    assert (report.metrics["catch_rate"]["n"], report.warnings) == (0, [])


def test_in_a_large_job_the_share_of_probes_is_the_options() -> None:
    _, report = reviewed(right, count=3000)
    assert 30 <= report.metrics["catch_rate"]["n"] <= 90


def test_where_no_answer_is_known_to_be_wrong_the_warning_says_so() -> None:
    _, report = reviewed(right, count=1)
    ((code, message),) = report.warnings
    assert code == "reviewer_agrees" and "nobody knows" in message


# Verdicts of others


def test_a_verdict_is_waited_for_after_all_other_gates() -> None:
    waits: list[tuple[str, Mapping[str, Any]]] = []

    def reply(item: Item, wait: Wait) -> Reply:
        waits.append((wait.kind, wait.data))
        return Reply(passed=len(waits) > 1, message="Test 3 fails.", by="ci")

    chosen = options(gates=["external:ci", "contains:9"], reviewer="big")
    run = Run(chosen, {"answer": ["1", "90", "95"], "review": ["PASS"]}, reply=reply)
    assert waits == [("verdict", {"gate": "ci", "text": text}) for text in ("90", "95")]
    assert run.way == [(1, "contains", "retry"), (1, "ci", "retry"), (1, None, "accepted")]
    assert "- ci: Test 3 fails." in texts(run.stage("answer")[2])[-1][1]
    assert len(run.stage("review")) == 1


def test_the_category_of_a_verdict_is_the_options_else_its_own() -> None:
    def category(gate: Any, **reply: Any) -> Any:
        tier = {"model": "nano", "budget": 1}
        run = Run(options(tiers=[tier], gates=[gate]), {"answer": ["1"]}, reply=lambda *_: Reply(False, **reply))
        return run.history[0]["failures"][0]

    assert category("external:ci") == {"category": "ci", "message": "ci says that the answer does not pass."}
    assert category("external:ci", category="build", message="No.") == {"category": "build", "message": "No."}
    assert category({"gate": "external", "value": "ci", "category": "own"}, category="build", by="Ann") == {
        "category": "own",
        "message": "Ann says that the answer does not pass.",
    }


def test_an_item_that_a_person_completes_is_done_and_says_by_whom() -> None:
    run = Run(options(tiers=["nano"], gates=RIGHT), {"answer": ["1"]})
    run.ended.state, run.ended.error = "completed", None
    run.ended.result = {**run.ended.result, "text": "95", "resolved_by": "Ann"}
    metrics = run.report().metrics
    ((done,), stuck) = run.results.lines("done.jsonl"), run.results.lines("stuck.jsonl")
    assert (done["text"], done["model"], done["attempts"], done["resolved_by"], stuck) == ("95", None, 2, "Ann", [])
    assert (metrics["accepted"], metrics["resolved"], metrics["tiers"]["1"]["accepted"]) == (1, 1, 0)


# All rows


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_row_is_accepted_stuck_or_failed_and_in_no_two_files(data: st.DataObject) -> None:
    chosen = options(
        gates=["not-contains:bad"],
        reviewer=data.draw(st.sampled_from([None, "big"]), "reviewer"),
        votes=data.draw(st.sampled_from([None, {"models": ["a", "b"], "extract": "first_line"}]), "votes"),
    )
    outcomes = st.sampled_from(["good", "bad", "other", "", FAILURE, "PASS", "FAIL\nno"])
    count = data.draw(st.integers(1, 8), "rows")
    results = played(
        refine, [{"prompt": "?"}] * count, chosen, lambda item, request: data.draw(outcomes, request.stage)
    )
    report = finished(refine, results, chosen)
    done, stuck = results.lines("done.jsonl"), results.lines("stuck.jsonl")
    assert len(done) + len(stuck) + report.metrics["failed"] == report.metrics["items"] == count
    assert {line["number"] for line in done}.isdisjoint(line["number"] for line in stuck)
    assert all(line["text"] in ("good", "other", "PASS", "FAIL\nno") for line in done)
    for item in results.ended:
        assert 1 <= len(item.result["history"]) <= 10
        assert [attempt["then"] for attempt in item.result["history"]][-1] in ("accepted", "stuck")


# What is refused, and what is looked up before anything runs


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"structure": {"json": {}, "regex": "a"}}, "at most 1"),
        ({"tiers": []}, "at least 1"),
    ],
)
def test_options_that_cannot_be_are_refused_with_their_path(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError) as error:
        options(**values)
    assert reason in str(error.value)


def test_options_written_as_texts_are_the_same_as_objects() -> None:
    as_text = options(gates=["regex:^a:b"], reviewer="big")
    as_object = options(
        tiers=[{"model": "nano"}, {"model": "mini"}],
        gates=[{"gate": "regex", "value": "^a:b"}],
        reviewer={"model": "big"},
    )
    assert as_text == as_object


def test_all_models_and_gates_are_named_before_anything_runs() -> None:
    assert refine.probe is not None
    votes = {"models": ["a", "b"], "extract": "boxed", "arbiter": "judge"}
    chosen = options(gates=["regex:^a", "external:ci"], reviewer="big", votes=votes)
    probed = refine.probe(chosen)
    asks = [(want.stage, want.model) for want in probed if isinstance(want, Ask)]
    assert asks == [
        *(("answer", "nano"), ("answer", "mini"), ("vote", "a"), ("vote", "b")),
        *(("arbiter", "judge"), ("review", "big")),
    ]
    assert [(want.gate, want.value) for want in probed if isinstance(want, Check)] == [
        ("regex", "^a"),
        ("external", "ci"),
    ]
    assert [stage.name for stage in refine.stages_of(chosen)] == ["answer", "vote", "arbiter", "review"]
    assert [stage.name for stage in refine.stages_of(options())] == ["answer"]


def test_a_row_needs_the_columns_that_gates_compare_with() -> None:
    assert refine.columns is not None
    gates = [*RIGHT, "not-contains:{{extra.word}}", {"gate": "is-json", "value": {"const": "{{x}}"}}]
    assert refine.columns(options(gates=gates), ROW) == ["answer", "extra.word"]
