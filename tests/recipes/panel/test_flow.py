"""Recipe panel: who is asked what, who hears of what, and who wins."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchyard.recipes import Answer, Ask, Check, EndedItem, Item, Lines, Matrix, blocks, is_judgement
from batchyard.recipes.program import Request
from recipes.panel.flow import panel
from recipes.panel.options import PanelOptions, agents_of
from tests.support.played import PlayedResults, finished, played

GOLDEN = Path(__file__).parent / "golden"
FAILURE = Answer(ok=False, error={"code": "request_timeout", "message": "It took too long."}, status_code=408)


def said(item: Item, request: Request) -> Answer:
    """An answer that names its request, and is like no other."""
    text = f"<{item.custom_id}/{request.stage}/{request.sample}>"
    return Answer(ok=True, text=text, input_tokens=10, output_tokens=5, seconds=0.25, finish_reason="stop")


def options(**values: Any) -> PanelOptions:
    chosen = PanelOptions(**{"model": "mini", **values})
    assert panel.check is not None
    panel.check(chosen)
    return chosen


def asked(
    chosen: PanelOptions, answer: Callable[[Item, Request], Answer | str] = said, **columns: Any
) -> tuple[list[Request], EndedItem]:
    """Return the requests of one item, and how it ended."""
    requests = []

    def answered(item: Item, request: Request) -> Answer | str:
        requests.append(request)
        return answer(item, request)

    results = played(panel, [{"prompt": "Design a cache.", **columns}], chosen, answered)
    return requests, results.ended[0]


def judging(text: str) -> Callable[[Item, Request], Answer | str]:
    """Return answers of which the judge's are this text."""
    return lambda item, request: text if request.stage == "judge" else said(item, request)


def proposing(sample: int, outcome: Answer | str) -> Callable[[Item, Request], Answer | str]:
    """Return answers of which this is one agent's proposal."""
    return lambda item, request: (
        outcome if (request.stage, request.sample) == ("propose", sample) else said(item, request)
    )


def system_of(request: Request) -> str:
    (system,) = [message["content"] for message in request.body["messages"] if message["role"] == "system"]
    return str(system)


def task_of(request: Request) -> str:
    return str(request.body["messages"][-1]["content"])


# What the agents are asked


def test_the_bodies_of_all_requests_are_those_of_the_golden_file() -> None:
    chosen = options(
        rubric={"correctness": "most", "cost": "some"},
        requirements=["It holds 1,000 entries.", "It forgets the oldest first."],
        metadata={"language": "Go", "deadline": 3},
        judge={"model": "judge"},
    )
    requests, _ = asked(chosen)
    bodies = [
        {"custom_id": request.custom_id(Item(0, "item-0", {})), **request.body, **request.structure}
        for request in requests
    ]
    assert bodies == json.loads((GOLDEN / "panel_bodies.json").read_text())


def test_agents_after_the_first_have_1_3_times_the_temperature_and_never_more_than_2() -> None:
    temperatures = [request.body["temperature"] for request in asked(options(temperature=0.7))[0]]
    assert temperatures == pytest.approx([0.7, 0.91, 0.91] * 1 + [0.91, 0.91, 0.7] + [0.7, 0.91, 0.91])
    assert [agent.temperature for agent in agents_of(options(temperature=1.8))] == [1.8, 2.0, 2.0]


def test_without_diversity_all_agents_have_one_temperature_and_no_paragraph_on_it() -> None:
    requests, _ = asked(options(diversity=False))
    assert {request.body["temperature"] for request in requests} == {0.7}
    assert not any("creative and diverse" in system_of(request) for request in requests)


def test_an_agents_own_model_and_temperature_are_taken_as_they_are() -> None:
    chosen = options(model=None, agents=[{"role": "DEV", "model": "a"}, {"role": "QA", "model": "b", "temperature": 1}])
    assert [(agent.model, agent.temperature, agent.diverse) for agent in agents_of(chosen)] == [
        ("a", 0.7, False),
        ("b", 1.0, True),
    ]


@pytest.mark.parametrize(("rounds", "stages"), [(0, 1), (1, 3), (2, 5), (5, 11)])
def test_a_hundred_tasks_with_three_agents_are_stages_of_exactly_300_requests(rounds: int, stages: int) -> None:
    chosen = options(rounds=rounds)
    counts: Counter[str] = Counter()

    def counted(item: Item, request: Request) -> Answer:
        counts[request.stage] += 1
        return said(item, request)

    played(panel, [{"prompt": f"Task {number}"} for number in range(100)], chosen, counted)
    assert [stage.name for stage in panel.stages_of(chosen)] == list(counts)
    assert list(counts.values()) == [300] * stages
    assert panel.expected is not None and list(panel.expected(chosen)) == [3.0] * stages


def test_the_judge_is_a_stage_of_its_own_after_the_rounds() -> None:
    names = [stage.name for stage in panel.stages_of(options(judge={"model": "big"}))]
    assert names == ["propose", "critique-1", "revise-1", "judge"]


def test_a_row_may_have_constraints_of_its_own_which_come_before_the_options() -> None:
    chosen = options(rubric="Of the options.", requirements=["Of the options."], metadata={"of": "the options"})
    (first, *_), _ = asked(
        chosen, requirements=["Of the row."], constraints={"rubric": "Of the row, too.", "requirements": ["no"]}
    )
    assert "Rubric:\nOf the row, too." in system_of(first)
    assert "Requirements:\n- Of the row." in system_of(first)
    assert "of: the options" in task_of(first)
    assert "Of the options." not in system_of(first)


def test_system_messages_of_job_and_row_come_first_and_the_rows_chat_is_kept() -> None:
    picture = {"type": "image_url", "image_url": {"url": "x"}}
    chat: list[dict[str, Any]] = [
        {"role": "system", "content": "Of the row."},
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Hello!"},
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "Why?"}],
        },
    ]
    (first, *_), _ = asked(options(system="Of the job.", prompts={"task": "Task: {task}"}), messages=chat)
    system, *before, last = first.body["messages"]
    assert system["content"].startswith("Of the job.\n\nOf the row.\n\nYou are an expert software developer.")
    assert before == chat[1:3]
    assert last["content"] == [picture, {"type": "text", "text": "Task: Why?"}]


def test_prompts_can_be_replaced_and_texts_in_braces_of_a_task_stay_as_they_are() -> None:
    prompts = {"system": "{role}", "task": "{task}"}
    (first, second, *_), _ = asked(options(prompts=prompts), prompt="Print {role} and {x}.\n\n\nTwice.")
    assert task_of(first) == "Print {role} and {x}.\n\n\nTwice."
    assert system_of(second).startswith("You are an expert in quality assurance.")


def test_the_hint_of_a_person_reaches_the_agents() -> None:
    item = Item(0, "a", {"prompt": "Design a cache."}, life=2, hint="Think of eviction.")
    turn = next(panel.function(item, options()))
    assert all("Think of eviction." in ask.content[-1]["content"] for ask in turn)  # type: ignore[union-attr]


# Who hears of what


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_critique_reaches_its_author_only_and_no_text_is_anyones_but_a_models(data: st.DataObject) -> None:
    number = data.draw(st.integers(2, 6), "agents")
    rounds = data.draw(st.integers(0, 3), "rounds")
    reviser = data.draw(st.sampled_from(["author", "critic"]), "reviser")
    roles = [f"ROLE{index}" for index in range(number)]
    chosen = options(agents=roles, roles={role: f"I am {role}." for role in roles}, rounds=rounds, reviser=reviser)
    fails = data.draw(st.sets(st.tuples(st.sampled_from(panel.stages_of(chosen)), st.integers(0, number - 1))), "fails")
    failing = {(stage.name, sample) for stage, sample in fails}
    requests: list[tuple[str, Request]] = []
    texts: list[str] = []

    def answer(item: Item, request: Request) -> Answer:
        role = next(role for role in roles if f"I am {role}." in system_of(request))
        requests.append((role, request))
        if (request.stage, request.sample) in failing:
            return FAILURE
        answer = said(item, request)
        texts.append(answer.text)
        return answer

    results = played(panel, [{"prompt": "Design a cache."}], chosen, answer)
    finished(panel, results, chosen)
    (task,) = results.lines("panel.jsonl")
    dialogue = results.lines("dialogue.jsonl")
    role_of = {agent.id: agent.role for agent in agents_of(chosen)}

    proposers = [role for sample, role in enumerate(roles) if ("propose", sample) not in failing]
    assert task["status"] == ("completed" if proposers else "failed")
    assert [failed["agent_id"] for failed in task["failed_agents"]] == [
        agent.id for agent in agents_of(chosen) if agent.role not in proposers
    ]
    for message in dialogue:
        author, about = role_of[message["author"]], role_of[message["about"]]
        if message["stage"].startswith("critique"):
            assert author == proposers[(proposers.index(about) + 1) % len(proposers)]
        if message["stage"].startswith("critique") and message["text"]:
            readers = [(role, request.stage) for role, request in requests if message["text"] in task_of(request)]
            reviser_role = about if reviser == "author" else author
            assert readers == [(reviser_role, message["stage"].replace("critique", "revise"))]
        if not message["stage"].startswith("critique") and message["text"]:
            hears = {role for role, request in requests if message["text"] in task_of(request)}
            critic = proposers[(proposers.index(about) + 1) % len(proposers)]
            assert hears <= {about, critic}  # a proposal is read by its author and its critic
    counts = Counter(request.stage for _, request in requests)
    for round_number in range(1, rounds + 1):
        assert counts[f"critique-{round_number}"] == len(proposers)

    spoken = [message["text"] for message in dialogue if message["text"] is not None]
    shown = [ranked["proposal"]["content"] for ranked in task["results"]]
    assert sorted(spoken) == sorted(texts)
    assert set(shown) <= set(texts)
    assert results.ended[0].result["text"] in {None, *texts}


def test_one_failing_agent_is_named_and_the_others_go_on() -> None:
    _, ended = asked(options(), proposing(1, FAILURE))
    assert ended.state == "completed"
    assert ended.result["failed_agents"] == [
        {"agent_id": "agent-qa-001", "error": "It took too long.", "error_type": "request_timeout"}
    ]
    assert [ranked["proposal"]["author_id"] for ranked in ended.result["results"]] == [
        "agent-dev-001",
        "agent-architect-001",
    ]


def test_if_all_agents_fail_the_item_fails_and_has_no_text() -> None:
    requests, ended = asked(options(judge={"model": "big"}), lambda item, request: FAILURE)
    assert (ended.state, ended.result["text"]) == ("failed", None)
    assert ended.error == {"code": "all_agents_failed", "message": "None of the 3 agents answered."}
    assert len(ended.result["failed_agents"]) == len(requests) == 3
    assert [message["text"] for message in ended.result["dialogue"]] == [None] * 3


def test_an_answer_of_blanks_is_no_proposal() -> None:
    _, ended = asked(options(), proposing(0, " \n"))
    assert ended.result["failed_agents"][0]["error_type"] == "empty_answer"


@pytest.mark.parametrize("stage", ["critique-1", "revise-1"])
def test_a_critique_or_a_revision_that_fails_keeps_the_proposal_and_is_noted(stage: str) -> None:
    def answer(item: Item, request: Request) -> Answer:
        return FAILURE if (request.stage, request.sample) == (stage, 0) else said(item, request)

    _, ended = asked(options(), answer)
    contents = {ranked["proposal"]["author_id"]: ranked["proposal"]["content"] for ranked in ended.result["results"]}
    assert contents["agent-dev-001"] == "<item-0/propose/0>"
    assert "revise" in contents["agent-qa-001"] and ended.state == "completed"
    (failed,) = [message for message in ended.result["dialogue"] if message["error"]]
    assert (failed["stage"], failed["about"], failed["text"]) == (stage, "agent-dev-001", None)


def test_a_critic_who_revises_has_its_model_named_and_the_author_stays() -> None:
    agents = [{"role": "DEV", "model": "a"}, {"role": "QA", "model": "b"}]
    _, ended = asked(options(agents=agents, reviser="critic"))
    proposals = [ranked["proposal"] for ranked in ended.result["results"]]
    assert [(proposal["author_id"], proposal["model"]) for proposal in proposals] == [
        ("agent-dev-001", "b"),
        ("agent-qa-001", "a"),
    ]


# Who wins


def test_the_score_is_the_weight_of_passed_checks_and_ranks_first() -> None:
    checks = ["contains:cache", {"gate": "not-contains", "value": "sorry", "weight": 3}]
    texts = ["sorry, a cache", "no idea", "a cache"]
    _, ended = asked(options(rounds=0, checks=checks), lambda item, request: texts[request.sample])
    results = ended.result["results"]
    assert [(ranked["proposal"]["content"], ranked["score"], ranked["rank"]) for ranked in results] == [
        ("a cache", 1.0, 1),
        ("no idea", 0.75, 2),
        ("sorry, a cache", 0.25, 3),
    ]
    assert (ended.result["text"], ended.result["winner"]) == ("a cache", "agent-architect-001")
    assert results[1]["checks"][0] == {
        "gate": "contains",
        "value": "cache",
        "weight": 1.0,
        "passed": False,
        "category": "contains",
        "message": "The answer does not contain 'cache'.",
    }


def test_without_checks_there_is_no_score_and_agents_rank_in_their_order() -> None:
    _, ended = asked(options())
    assert [(ranked["score"], ranked["judge"]) for ranked in ended.result["results"]] == [(None, None)] * 3
    assert ended.result["winner"] == "agent-dev-001"


def judged(marks: list[str], comparisons: list[str], **judge: Any) -> EndedItem:
    def answer(item: Item, request: Request) -> Answer | str:
        if request.stage != "judge":
            return said(item, request)
        return (marks if request.visit == 1 else comparisons)[request.sample]

    return asked(options(rounds=0, judge={"model": "big", **judge}), answer)[1]


def order(ended: EndedItem) -> list[tuple[str, Any, Any]]:
    return [
        (ranked["proposal"]["author_role"], ranked["judge"]["mark"], ranked["judge"]["comparison"])
        for ranked in ended.result["results"]
    ]


@pytest.mark.parametrize(
    ("marks", "comparisons", "expected"),
    [
        (["3", "9", "5"], [], [("QA", 9, None), ("ARCHITECT", 5, None), ("DEV", 3, None)]),
        (["9", "9", "5"], ["2", "1"], [("QA", 9, "won"), ("DEV", 9, "lost"), ("ARCHITECT", 5, None)]),
        (["9", "9", "9"], ["1", "1"], [("DEV", 9, "tied"), ("QA", 9, "tied"), ("ARCHITECT", 9, None)]),
        (["9", "9", "5"], ["2", "?"], [("DEV", 9, "tied"), ("QA", 9, "tied"), ("ARCHITECT", 5, None)]),
        (['{"mark": 4}', "8/10", "11"], [], [("QA", 8, None), ("DEV", 4, None), ("ARCHITECT", None, None)]),
        (["good", "1", "none"], [], [("QA", 1, None), ("DEV", None, None), ("ARCHITECT", None, None)]),
    ],
)
def test_the_judges_marks_rank_and_a_close_pair_is_compared_in_both_orders(
    marks: list[str], comparisons: list[str], expected: list[tuple[str, Any, Any]]
) -> None:
    assert order(judged(marks, comparisons)) == expected


def test_near_says_how_close_marks_are_compared() -> None:
    assert order(judged(["7", "9", "8"], ["2", "1"], near=1))[0] == ("ARCHITECT", 8, "won")
    assert order(judged(["7", "9", "8"], [], near=0.9))[0] == ("QA", 9, None)


def test_the_judge_sees_neither_names_nor_roles_of_authors() -> None:
    requests, _ = asked(options(judge={"model": "big", "near": 9}), judging("5"))
    for request in requests:
        if request.stage == "judge":
            text = json.dumps(request.body["messages"])
            assert not any(word in text for word in ("agent-", "developer", "quality assurance", "architect"))


def test_a_judge_that_cannot_be_read_leaves_the_ranking_to_the_checks() -> None:
    _, ended = asked(options(judge={"model": "big"}), judging("very good"))
    assert ended.state == "completed"
    assert {ranked["judge"]["mark"] for ranked in ended.result["results"]} == {None}


def test_a_judge_without_structure_is_asked_in_words_alone() -> None:
    requests, _ = asked(options(judge={"model": "big", "structured": False}), judging("5"))
    assert not any(request.structure for request in requests)
    assert sum(request.stage == "judge" for request in requests) == 5


def test_checks_and_extract_judge_and_change_no_request() -> None:
    for name in ("checks", "extract"):
        assert is_judgement(PanelOptions.model_fields[name].metadata)
    plain, _ = asked(options())
    checked, _ = asked(options(checks=["contains:x"], extract="last_number"))
    assert [request.body for request in plain] == [request.body for request in checked]


def test_checks_are_named_before_anything_runs() -> None:
    assert panel.probe is not None
    probed = panel.probe(options(checks=["regex:^a", {"gate": "is-json"}], judge={"model": "big"}))
    checks = [want for want in probed if isinstance(want, Check)]
    assert [(check.gate, check.value) for check in checks] == [("regex", "^a"), ("is-json", None)]
    assert {want.model for want in probed if isinstance(want, Ask)} == {"mini", "big"}


def test_checks_written_as_texts_are_the_same_options_as_objects() -> None:
    as_text, as_object = (options(checks=[check]) for check in ("regex:^a:b", {"gate": "regex", "value": "^a:b"}))
    assert as_text == as_object
    assert as_text.model_dump()["checks"] == [{"gate": "regex", "value": "^a:b", "weight": 1.0}]


# What is refused


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"agents": ["DEV", "QAA"]}, "agents.1: No role is named 'QAA'. Did you mean 'QA'?"),
        ({"agents": [{"role": "SECURTY"}, "QA"], "roles": {"SECURITY": None}}, "Did you mean 'SECURITY'?"),
        ({"roles": {"a b": None}}, "roles: 'a b' cannot be a role"),
        ({"model": None}, "model: Agent 1 (DEV) has no model"),
        ({"agents": ["DEV"]}, "rounds: A round needs two agents"),
        ({"judge": {"model": "mini"}}, "judge.model: 'mini' is the model of an agent"),
        ({"judge": {"model": "big", "range": [5, 5]}}, "judge.range: The lowest mark 5 is not below"),
        ({"prompts": {"task": "{tusk}"}}, "prompts.task: There is no place {tusk}. Did you mean {task}?"),
        ({"checks": ["is-json", "latency:2s"]}, "checks.1: Gate 'latency' needs more than the text of a proposal."),
        ({"checks": ["external:ci"]}, "checks.0: Gate 'external' needs more than the text of a proposal."),
        ({"extract": "last_numer"}, "extract: No extract is named 'last_numer'. Did you mean 'last_number'?"),
    ],
)
def test_options_that_cannot_be_are_refused_with_their_path(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError) as error:
        options(**values)
    assert reason in str(error.value)


def test_a_role_of_ones_own_has_its_prompt_or_is_an_expert_by_its_name() -> None:
    chosen = options(agents=["SECURITY", "LEGAL", "QA"], roles={"SECURITY": None, "LEGAL": "You know the law."})
    prompts = [agent.prompt for agent in agents_of(chosen)]
    assert prompts[:2] == ["You are a SECURITY expert.", "You know the law."]
    assert "quality assurance" in prompts[2]


def test_the_model_of_an_agent_may_judge_if_that_is_allowed() -> None:
    options(judge={"model": "mini", "allow_author": True})


# The cases of the system that this recipe replaces


def test_an_agent_is_constructed_with_id_role_model_and_temperature() -> None:
    agents = agents_of(options(agents=["DEV", "QA", "DEV"], rounds=0))
    assert [agent.id for agent in agents] == ["agent-dev-001", "agent-qa-001", "agent-dev-002"]


def test_an_agents_info_says_role_model_and_temperature() -> None:
    (agent,) = agents_of(options(agents=["DATA"], rounds=0))
    assert (agent.role, agent.model, agent.temperature, agent.diverse) == ("DATA", "mini", 0.7, False)


def test_the_system_message_of_the_first_agent_is_plain() -> None:
    (first, *_), _ = asked(options(rubric="Be exact.", requirements=["Fast", "Small"]))
    assert "Rubric:\nBe exact." in system_of(first) and "Requirements:\n- Fast\n- Small" in system_of(first)
    assert "diverse" not in system_of(first)


def test_the_system_message_of_the_others_asks_for_diversity() -> None:
    (_, second, *_), _ = asked(options())
    for words in ("creative and diverse", "alternative perspectives", "Think outside the box"):
        assert words in system_of(second)


@pytest.mark.parametrize(
    ("role", "words"),
    [
        ("DEV", "expert software developer"),
        ("QA", "quality assurance"),
        ("ARCHITECT", "software architect"),
        ("DEVOPS", "DevOps engineer"),
        ("DATA", "data engineer"),
    ],
)
def test_the_system_message_of_each_role_says_what_it_is(role: str, words: str) -> None:
    (first,), _ = asked(options(agents=[role], rounds=0))
    assert words in system_of(first)


def test_the_task_message_names_the_sections_and_the_metadata() -> None:
    (first, *_), _ = asked(options(metadata={"team": "blue"}))
    text = task_of(first)
    assert text.startswith("Design a cache.")
    for words in ("Analysis of the requirements", "Proposed solution approach", "Implementation details", "challenges"):
        assert words in text
    assert "- team: blue" in text


def test_a_proposal_has_content_author_role_model_temperature_and_tokens() -> None:
    _, ended = asked(options(agents=["DEV"], rounds=0))
    assert ended.result["results"][0]["proposal"] == {
        "content": "<item-0/propose/0>",
        "author_id": "agent-dev-001",
        "author_role": "DEV",
        "model": "mini",
        "temperature": 0.7,
        "tokens": 15,
        "finish_reason": "stop",
    }


def test_a_proposal_with_diversity_has_the_raised_temperature() -> None:
    _, ended = asked(options(rounds=0))
    assert ended.result["results"][1]["proposal"]["temperature"] == pytest.approx(0.91)


def test_an_engine_error_is_the_agents_failure_and_becomes_no_proposal() -> None:
    _, ended = asked(options(agents=["DEV"], rounds=0), lambda item, request: FAILURE)
    assert ended.state == "failed" and "results" not in ended.result


def events_of(ended: EndedItem, chosen: PanelOptions) -> list[dict[str, Any]]:
    assert panel.events is not None
    return json.loads(json.dumps(panel.events(ended, chosen)))  # type: ignore[no-any-return]


def test_the_completed_event_of_an_agent_holds_its_proposal() -> None:
    chosen = options()
    _, ended = asked(chosen)
    event = events_of(ended, chosen)[1]
    assert list(event) == [
        "type", "task_id", "agent_id", "role", "proposal", "status", "duration_ms", "timestamp", "model", "diversity",
    ]  # fmt: skip
    assert (event["type"], event["task_id"], event["agent_id"]) == (
        "agent.response.completed",
        "item-0",
        "agent-qa-001",
    )
    assert event["proposal"]["content"] == "<item-0/revise-1/1>"
    assert (event["status"], event["diversity"], event["duration_ms"]) == ("completed", True, 750.0)


def test_the_failed_event_of_an_agent_holds_the_error() -> None:
    chosen = options()
    _, ended = asked(chosen, lambda item, request: FAILURE)
    event = events_of(ended, chosen)[0]
    assert event == {
        "type": "agent.response.failed",
        "task_id": "item-0",
        "agent_id": "agent-dev-001",
        "role": "DEV",
        "status": "failed",
        "error": "It took too long.",
        "error_type": "request_timeout",
        "duration_ms": None,
        "timestamp": "2023-11-14T22:13:21.500000Z",
    }


# What is left behind


def test_the_deliberation_event_is_the_task_and_says_why_it_failed() -> None:
    chosen = options()
    _, ended = asked(chosen)
    event = events_of(ended, chosen)[-1]
    assert list(event) == [
        "type", "task_id", "status", "winner", "results", "failed_agents", "duration_ms", "timestamp",
    ]  # fmt: skip
    assert (event["type"], event["winner"], event["duration_ms"]) == ("deliberation.completed", "agent-dev-001", 1500.0)

    _, ended = asked(chosen, lambda item, request: FAILURE)
    event = events_of(ended, chosen)[-1]
    assert (event["type"], event["status"]) == ("deliberation.failed", "failed")
    assert (event["error"], event["error_type"]) == ("None of the 3 agents answered.", "all_agents_failed")


def test_a_task_that_never_began_has_a_line_and_an_event_and_no_text() -> None:
    chosen = options()
    expired = EndedItem(0, "late", {"prompt": "x"}, "expired", {}, None)
    results = PlayedResults([expired])
    report = finished(panel, results, chosen)
    assert results.lines("panel.jsonl") == [
        {
            "task_id": "late",
            "status": "expired",
            "winner": None,
            "results": [],
            "failed_agents": [],
            "duration_ms": None,
        }
    ]
    (event,) = results.lines("events.jsonl")
    assert (event["type"], event["error_type"]) == ("deliberation.failed", "expired")
    assert report.metrics["tasks"] == 1 and report.metrics["diversity"] == {"mean": None, "n": 0}


def test_the_artifacts_are_json_lines_with_the_keys_of_the_golden_file() -> None:
    chosen = options(checks=["contains:item"], judge={"model": "big"})
    rows = [{"prompt": "One", "custom_id": "one"}, {"prompt": "Two", "custom_id": "two"}]

    def answer(item: Item, request: Request) -> Answer | str:
        return "5" if request.stage == "judge" else said(item, request)

    results = played(panel, rows, chosen, answer)
    finished(panel, results, chosen)
    assert {name: results.lines(name)[0] for name in results.artifacts} == json.loads(
        (GOLDEN / "panel_artifacts.json").read_text()
    )
    assert [line["task_id"] for line in results.lines("panel.jsonl")] == ["one", "two"]


def test_metrics_count_wins_scores_consensus_gain_and_diversity() -> None:
    chosen = options(agents=["DEV", "QA"], checks=["equals:{{answer}}"], extract="last_number")
    texts = {
        ("a", "propose", 0): "1 2 3", ("a", "propose", 1): "7", ("a", "revise-1", 0): "8", ("a", "revise-1", 1): "8.0",
        ("b", "propose", 0): "9", ("b", "propose", 1): "9", ("b", "revise-1", 0): "8", ("b", "revise-1", 1): "9",
    }  # fmt: skip

    def answer(item: Item, request: Request) -> Answer:
        text = texts.get((item.custom_id, request.stage, request.sample), "no")
        return Answer(ok=True, text=text, output_tokens=2, seconds=1.0)

    rows = [{"prompt": "x", "custom_id": "a", "answer": "8"}, {"prompt": "x", "custom_id": "b", "answer": "9"}]
    results = played(panel, rows, chosen, answer)
    report = finished(panel, results, chosen)
    metrics = report.metrics
    agents = metrics["agents"]
    assert [agents[name]["wins"] for name in ("agent-dev-001", "agent-qa-001")] == [1, 1]
    assert agents["agent-dev-001"]["tokens"] == 12 and agents["agent-dev-001"]["seconds"]["n"] == 6
    assert agents["agent-dev-001"]["seconds"]["p95"] == pytest.approx(1.0, rel=0.02)
    assert {role: values["score"]["mean"] for role, values in metrics["roles"].items()} == {"DEV": 0.5, "QA": 0.5}
    assert metrics["consensus"] == {"mean": 0.5, "n": 2}  # 8 and 8.0 agree
    assert metrics["revision_gain"] == {"mean": 0.0, "n": 4}  # +1 (a, DEV), 0, -1 (b, DEV), 0
    assert metrics["diversity"] == {"mean": pytest.approx(0.5), "n": 2}  # "1 2 3" and "7" are all different
    assert metrics["distinct_2"] == {"mean": 1.0, "n": 1}  # "1 2", "2 3"; the other task has one word a text
    assert (metrics["tasks"], metrics["completed"], metrics["ties"]) == (2, 2, 0)
    matrix = next(block for block in report.view if isinstance(block, Matrix))
    assert matrix.values == [[None, 0.5], [0.5, None]]
    lines = next(block for block in report.view if isinstance(block, Lines))
    assert (lines.x, [series.y for series in lines.series]) == ([0, 1], [[0.5, 0.5], [0.5, 0.5]])
    json.dumps([metrics, blocks.as_json(report.view)])


def test_a_win_by_the_order_of_agents_alone_is_counted_as_a_tie() -> None:
    chosen = options()
    results = played(panel, [{"prompt": "x"}], chosen, said)
    assert finished(panel, results, chosen).metrics["ties"] == 1


def one_right(item: Item, request: Request) -> str:
    """Agent 0 is right in tasks 0 to 5, agent 1 in tasks 6 to 9."""
    return "yes" if request.sample == (0 if item.number < 6 else 1) else "no"


def test_the_gain_of_choosing_is_told_beside_the_best_single_agent_with_intervals() -> None:
    chosen = options(agents=["DEV", "QA"], rounds=0, checks=["equals:yes"])
    metrics = finished(panel, played(panel, [{"prompt": "x"}] * 10, chosen, one_right), chosen).metrics
    assert (metrics["best_of"]["mean"], metrics["best_of"]["n"]) == (1.0, 10)
    assert (metrics["best_agent"]["agent"], metrics["best_agent"]["mean"]) == ("agent-dev-001", 0.6)
    low, high = metrics["gain"]["intervals"]["mean"]
    assert metrics["gain"]["mean"] == pytest.approx(0.4)
    assert 0 < low < 0.4 < high
    assert metrics["gain"]["verdict"] == "gain"


def test_no_gain_is_called_none_and_a_failed_task_counts_0() -> None:
    chosen = options(agents=["DEV", "QA"], rounds=0, checks=["equals:yes"])

    def answer(item: Item, request: Request) -> Answer | str:
        return FAILURE if item.number == 0 else "yes"

    metrics = finished(panel, played(panel, [{"prompt": "x"}] * 4, chosen, answer), chosen).metrics
    assert (metrics["best_of"]["mean"], metrics["best_agent"]["mean"]) == (0.75, 0.75)
    assert (metrics["gain"]["mean"], metrics["gain"]["verdict"]) == (0.0, "none")


def test_without_checks_no_gain_is_told() -> None:
    chosen = options()
    assert "gain" not in finished(panel, played(panel, [{"prompt": "x"}], chosen, said), chosen).metrics
