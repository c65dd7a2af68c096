"""Engine vllm: real vLLM behind the pipeline. Most of these tests share an engine with those of other files."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, get_args

import pytest

from batchyard.endpoints import catalog, responses
from batchyard.models import ModelSpec, vllm_installed
from inference import pipeline
from inference.engines.transformers.engine import Transformers
from inference.engines.vllm import internals, parameters
from inference.engines.vllm.engine import VLLM
from inference.residents import directory
from tests.support.pipelines import TIMEOUTS
from tests.support.rows import all_answers, answer_of, chat, table
from tests.support.stacks import ROOT
from tests.support.vllm_engines import engine_processes, tiny_spec

CHAT = "/v1/chat/completions"
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not vllm_installed(), reason="vLLM is not installed"),
    pytest.mark.usefixtures("cluster"),
]
# Seeded requests that do not fit into the KV cache together, nor their prompts into a step, straight to an engine: the
# pipeline would hold some back.
PREEMPTED = """
import asyncio, sys
from batchyard.models import ModelSpec
from inference.engines.vllm.engine import VLLM
from inference.progress import PROGRESS, RequestProgress
from tests.support.rows import all_answers, chat

async def main():
    engine = VLLM(ModelSpec.model_validate_json(sys.argv[1]), 300.0)
    await engine.start()
    common = {"temperature": 1.5, "max_tokens": 150, "ignore_eos": True}
    bodies = [body for seed in range(12) for body in chat(f"{seed} " * (4 * seed), seed=seed, **common)]
    answers = await all_answers(engine, "/v1/chat/completions", bodies)
    print("counted", engine.preemptions, [answer.status_code for answer in answers].count(200))
    alone = [answer for body in bodies for answer in await all_answers(engine, "/v1/chat/completions", [body])]
    texts = [[answer.body["choices"][0]["message"]["content"] for answer in some] for some in (answers, alone)]
    print("the same", texts[0] == texts[1], len(set(texts[0])))
    print("looked up", engine.prefix_tokens, engine.prefix_hits, engine.cache_use)
    progress = RequestProgress()
    PROGRESS.set(progress)  # the task has it
    task = asyncio.create_task(engine.answer("/v1/chat/completions", bodies[-1]))
    begun = []
    while not task.done():
        begun.append(engine.has_begun(progress))
        await asyncio.sleep(0.001)
    print("begun", begun[0], True in begun, begun == sorted(begun))
    engine.request_timeout = 0.02
    bodies = chat(*map(str, range(30)), max_tokens=240, ignore_eos=True)
    answers = await all_answers(engine, "/v1/chat/completions", bodies)
    print("too long", {answer.error and answer.error["code"] for answer in answers})
    engine.request_timeout = 300.0
    [answer] = await all_answers(engine, "/v1/chat/completions", chat("hi", max_tokens=4))
    print("goes on", answer.status_code)
    await engine.stop()

if __name__ == "__main__":
    asyncio.run(main())
"""


GREEDY = chat(*[f"what is {index} and {index}?" for index in range(40)], temperature=0, max_tokens=24)
GREEDY += chat("Ray", temperature=0, max_tokens=24, logprobs=True, top_logprobs=2)


@pytest.fixture(scope="module")
def ours(spec: ModelSpec) -> list[dict[str, Any]]:
    """The output lines of GREEDY, from the engine that most tests share."""
    return run(spec, CHAT, GREEDY)


@pytest.fixture(scope="module")
def spec(tiny: Path, cluster: str) -> ModelSpec:
    return tiny_spec(tiny)


def run(spec: ModelSpec, endpoint: str, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    lines: dict[int, dict[str, Any]] = {}
    for answers in pipeline.run(spec, endpoint, table(bodies), TIMEOUTS):
        for row in answers.to_pylist():
            assert row["line"] not in lines
            lines[row["line"]] = {**row, **answer_of(row)}
    assert sorted(lines) == list(range(len(bodies)))
    return [lines[line] for line in sorted(lines)]


def choices(line: dict[str, Any]) -> list[tuple[str, str]]:
    return [(choice["message"]["content"], choice["finish_reason"]) for choice in line["response"]["body"]["choices"]]


@pytest.mark.usefixtures("ours")
def test_tokens_come_from_the_engine_and_say_what_was_cached(spec: ModelSpec) -> None:
    prefix = "one two three four five six seven " * 8
    bodies = chat(prefix + "a", prefix + "b", temperature=0, max_tokens=4, ignore_eos=True)
    run(spec, CHAT, bodies)
    again = run(spec, CHAT, bodies)
    for line in again:
        usage = line["response"]["body"]["usage"]
        assert line["input_tokens"] == usage["prompt_tokens"] > line["cached_tokens"] >= 16
        assert line["output_tokens"] == usage["completion_tokens"] == 4


def test_a_rows_failure_is_that_rows_4xx(spec: ModelSpec) -> None:
    bodies = chat("fine", max_tokens=4) + chat("x" * 900) + chat("fine", temperature="hot") + chat("y", max_tokens=999)
    fine, *bad = run(spec, CHAT, bodies)
    assert fine["ok"]
    assert [line["response"]["status_code"] for line in bad] == [400, 400, 400]
    errors = [line["response"]["body"]["error"] for line in bad]
    assert [error["code"] for error in errors] == [
        "context_length_exceeded", "invalid_value", "context_length_exceeded"
    ]  # fmt: skip
    assert errors[1]["param"] == "temperature"


def test_n_samples_completions_and_json_schemas_work_as_in_vllm(spec: ModelSpec) -> None:
    (several,) = run(spec, CHAT, chat("Ray", n=3, seed=1, temperature=1.0, max_tokens=8))
    assert len(several["response"]["body"]["choices"]) == 3
    assert run(spec, CHAT, chat("Ray", n=3, seed=1, temperature=1.0, max_tokens=8))[0]["output_tokens"] > 0
    schema = {"type": "json_schema", "json_schema": {"name": "yes", "schema": {"type": "boolean"}}}
    (formed,) = run(spec, CHAT, chat("yes or no?", response_format=schema, max_tokens=20))
    assert json.loads(formed["response"]["body"]["choices"][0]["message"]["content"]) in (True, False)
    (text,) = run(spec, "/v1/completions", [{"model": "tiny", "prompt": "Ray", "temperature": 0, "max_tokens": 5}])
    assert text["response"]["body"]["object"] == "text_completion"


@pytest.mark.parametrize(
    ("kind", "form", "fits"),
    [
        (
            "json",
            {
                "type": "object",
                "properties": {"kind": {"enum": ["yard", "line"]}, "full": {"type": "boolean"}},
                "required": ["kind", "full"],
                "additionalProperties": False,
            },
            r'\{\s*"kind"\s*:\s*"(yard|line)"\s*,\s*"full"\s*:\s*(true|false)\s*\}',
        ),
        ("regex", r"[a-c]{3}-\d", r"[a-c]{3}-\d"),
        ("choice", ["load", "unload"], "load|unload"),
        ("grammar", 'root ::= "in" | "out"', "in|out"),
    ],
    ids=["json", "regex", "choice", "grammar"],
)
def test_each_form_that_a_recipe_names_holds_the_answers_of_a_random_model(
    spec: ModelSpec, kind: str, form: Any, fits: str
) -> None:
    bodies = chat(*map(str, range(4)), temperature=1.0, seed=3, max_tokens=100, **VLLM.structure(kind, form))
    for line in run(spec, CHAT, bodies):
        ((text, reason),) = choices(line)
        assert (re.fullmatch(fits, text) is not None, reason) == (True, "stop"), text


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
VALUES: dict[str, Any] = {
    "allowed_token_ids": [40, 41, 42], "bad_words": ["yard"], "frequency_penalty": 0.5, "ignore_eos": True,
    "include_stop_str_in_output": True, "length_penalty": 1.2, "logit_bias": {"40": 5}, "logprobs": True,
    "max_tokens": 3, "min_p": 0.1, "min_tokens": 2, "n": 3, "presence_penalty": 0.5, "prompt_logprobs": 1,
    "repetition_detection": {"max_pattern_size": 8, "min_pattern_size": 2, "min_count": 4},
    "repetition_penalty": 1.1, "response_format": {"type": "json_object"}, "return_token_ids": True,
    "return_tokens_as_token_ids": True, "seed": 7, "skip_special_tokens": False, "spaces_between_special_tokens": False,
    "stop": ["e"], "stop_token_ids": [40], "structured_outputs": {"choice": ["load", "unload"]}, "temperature": 0.7,
    "thinking_token_budget": 5, "top_k": 5, "top_p": 0.9, "use_beam_search": True, "vllm_xargs": {"a": 1}, "echo": True,
    "truncate_prompt_tokens": 20, "truncation_side": "left", "add_special_tokens": False, "model": "tiny",
    "max_completion_tokens": 3, "top_logprobs": 2, "tools": [TOOL], "tool_choice": "none", "parallel_tool_calls": False,
    "reasoning_effort": "low", "include_reasoning": False, "add_generation_prompt": False,
    "continue_final_message": True, "chat_template_kwargs": {"a": 1}, "documents": [{"title": "a", "text": "b"}],
    "mm_processor_kwargs": {},
}  # fmt: skip
"""A value of every parameter that is let through. Some take another with them, below."""
WITH: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "use_beam_search": {"n": 2},
    "continue_final_message": {"add_generation_prompt": False},
    "tools": {"tool_choice": "none"},
}
REFUSED = {"thinking_token_budget"}
"""Parameters that this model cannot honour, each with a message of vLLM's."""


def bodies_of(endpoint: str, **parameters: Any) -> list[dict[str, Any]]:
    """Return a long request of the endpoint for each parameter it lets through, with `parameters` beside it."""
    text = "one two three four five six seven eight nine ten " * 4
    prompt = {CHAT: chat(text)[0], "/v1/completions": {"model": "tiny", "prompt": text}}[endpoint]
    names = sorted(parameters_of(endpoint))
    values = {**VALUES, "logprobs": 2} if endpoint == "/v1/completions" else VALUES
    return [{**prompt, "max_tokens": 8, **parameters, **WITH.get(name, {}), **{name: values[name]}} for name in names]


def parameters_of(endpoint: str) -> set[str]:
    return set(parameters.SUPPORTED[endpoint]) - {"messages", "prompt", "input", "model"}


@pytest.mark.parametrize("endpoint", [CHAT, "/v1/completions"])
def test_every_parameter_reaches_vllm_and_harms_no_plain_request_beside_it(spec: ModelSpec, endpoint: str) -> None:
    bodies = bodies_of(endpoint)
    plain = bodies_of(endpoint)[:1] * 20
    lines = run(spec, endpoint, [*bodies, *({**body, "seed": seed} for seed, body in enumerate(plain))])
    assert all(line["ok"] for line in lines[len(bodies) :])
    errors = {
        name: line["error"] or line["response"]["body"]["error"]
        for name, line in zip(sorted(parameters_of(endpoint)), lines, strict=False)
        if not line["ok"]
    }
    assert set(errors) == REFUSED & parameters_of(endpoint), errors
    by_name = dict(zip(sorted(parameters_of(endpoint)), lines, strict=False))
    answer = by_name["prompt_logprobs"]["response"]["body"]
    entries = answer.get("prompt_logprobs") or answer["choices"][0]["prompt_logprobs"]
    assert len(entries) == answer["usage"]["prompt_tokens"] > 64
    assert all(key.isdecimal() and entry["logprob"] <= 0 for rest in entries[1:] for key, entry in rest.items())


def test_seeded_requests_that_exceed_a_step_answer_the_same_whatever_runs_beside_them(spec: ModelSpec) -> None:
    bodies = [body for seed in (1, 2) for body in bodies_of(CHAT, seed=seed, temperature=1.2)]
    texts = [line["answer"] and line.get("response") for line in run(spec, CHAT, bodies)]
    reversed_ = [line.get("response") for line in run(spec, CHAT, [*bodies, *bodies_of(CHAT, temperature=1.2)][::-1])]
    first = [samples(response) for response in texts]
    again = [samples(response) for response in reversed_[::-1][: len(bodies)]]
    assert first == again
    assert len({text for several in first for text in several}) > 20
    assert pids(), "the engine of all these requests is there"


def samples(response: dict[str, Any]) -> list[str]:
    """Return the texts of a response's choices; none if it is an error."""
    return [choice["message"]["content"] for choice in response["body"].get("choices", [])]


def test_versions_come_from_the_engine_without_another_start(spec: ModelSpec) -> None:
    run(spec, CHAT, chat("hi", max_tokens=1))
    before = pids()
    versions = pipeline.start(spec, TIMEOUTS).versions
    assert versions["engine"] == "vllm" and versions["version"] and len(versions["model_sha256"]) == 64
    assert pids() == before != []


def pids() -> list[int]:
    return [state.process["pid"] for state in directory.states(60.0).values() if state.model == "tiny"]


def test_a_model_that_generates_answers_on_every_endpoint_that_it_can_do(spec: ModelSpec) -> None:
    (line,) = run(spec, catalog.RESPONSES.path, [{"model": "tiny", **catalog.RESPONSES.example, "background": True}])
    assert line["response"]["body"]["status"] in ("completed", "incomplete") and line["output_tokens"] > 0
    for entry in (
        catalog.RESPONSES,
        catalog.MESSAGES,
        catalog.GENERATIVE_SCORING,
        catalog.TOKENIZE,
        catalog.DETOKENIZE,
    ):
        (line,) = run(spec, entry.path, [{"model": "tiny", **entry.example}])
        assert line["ok"], (entry.path, line)
    (line,) = run(spec, catalog.RERANK.path, [{"model": "tiny", **catalog.RERANK.example}])
    assert line["response"]["body"]["error"]["code"] == "unsupported_endpoint"
    assert "it can do /v1/chat/completions, " in line["response"]["body"]["error"]["message"]


def test_token_ids_go_in_and_come_out_as_a_completion_of_them_has(spec: ModelSpec) -> None:
    (completion,) = run(spec, catalog.COMPLETIONS.path, [
        {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0, "return_token_ids": True}
    ])  # fmt: skip
    sampling = {"max_tokens": 4, "temperature": 0}
    body = {"model": "tiny", "token_ids": [1, 2, 3], "sampling_params": sampling}
    (ids, wrong, *texts) = run(
        spec,
        catalog.GENERATE.path,
        [body, body | {"sampling_params": {"temperature": "hot"}}]
        + [body | {"output_mode": "text"}] * ("output_mode" in parameters.SUPPORTED[catalog.GENERATE.path]),
    )
    expected = responses.output(completion["response"]["body"])
    assert responses.output(ids["response"]["body"]).token_ids == expected.token_ids
    assert all(responses.output(text["response"]["body"]).text == expected.text for text in texts)
    assert wrong["response"]["status_code"] == 400, wrong


def test_engine_transformers_gives_prompts_the_logprobs_that_vllm_gives_them(spec: ModelSpec) -> None:
    common = {"model": "tiny", "temperature": 0}
    prompts = [list(range(5, 5 + length)) for length in (1, 9, 60)]
    bodies = [{**common, "prompt": ids, "prompt_logprobs": 2, "max_tokens": 1} for ids in prompts]
    bodies += [
        {**common, "prompt": "what is a cluster?", "echo": True, "logprobs": 1, "max_tokens": count} for count in (0, 3)
    ]
    bodies += [{**common, "prompt": "Ray", "logprobs": 2, "max_tokens": 3}]
    expected = [line["response"]["body"] for line in run(spec, "/v1/completions", bodies)]
    engine = Transformers(spec.model_copy(update={"engine": "transformers", "engine_args": {"dtype": "float32"}}), 60)
    asyncio.run(engine.start())
    answers = asyncio.run(all_answers(engine, "/v1/completions", bodies))
    for body, answer in zip(expected, answers, strict=True):
        assert answer.body is not None
        for name in ("finish_reason", "logprobs", "prompt_logprobs"):
            ours, theirs = (each["choices"][0].get(name) for each in (answer.body, body))
            (texts, numbers), (their_texts, their_numbers) = leaves(ours), leaves(theirs)
            assert texts == their_texts, name
            assert numbers == pytest.approx(their_numbers, abs=1e-4), name


CUT = "\ufffd"
"""What stands for bytes of a character that is never complete; vLLM leaves them out."""


def leaves(value: Any) -> tuple[dict[str, Any], dict[str, float]]:
    """Return what a JSON value holds that has no parts, by path: its numbers with a fraction apart from the rest."""
    all_leaves: tuple[dict[str, Any], dict[str, float]] = ({}, {})

    def visit(part: Any, path: str) -> None:
        if isinstance(part, dict | list):
            for key, each in part.items() if isinstance(part, dict) else enumerate(part):
                visit(each, f"{path}/{key}".replace(CUT, ""))  # tokens are keys, too
        elif isinstance(part, str):
            all_leaves[0][path] = part.replace(CUT, "")
        else:
            all_leaves[isinstance(part, float)][path] = part

    visit(value, "")
    return all_leaves


def test_the_labels_of_a_generative_score_share_one(spec: ModelSpec) -> None:
    body = {"model": "tiny", **catalog.GENERATIVE_SCORING.example}
    first, second = (
        responses.scores(line["response"]["body"])
        for line in run(spec, catalog.GENERATIVE_SCORING.path, [body, body | {"label_token_ids": [2, 1]}])
    )
    assert [one + other for one, other in zip(first, second, strict=True)] == pytest.approx([1, 1], abs=1e-4)


def test_an_engine_without_work_soon_leaves_the_cpus_to_others(spec: ModelSpec) -> None:
    def seconds() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in engine_processes("tiny"))

    run(spec, CHAT, chat("Ray", temperature=0, max_tokens=24))
    before = seconds()
    time.sleep(1)  # as long as vLLM's processes would go on asking each other for work
    assert seconds() - before < 0.4


@pytest.mark.exhaustive
def test_preemptions_change_no_seeded_answer_and_a_request_that_runs_too_long_no_other(tiny: Path) -> None:
    spec = tiny_spec(tiny, kv_cache_memory_bytes=2**19, disable_log_stats=False).model_dump_json()
    ran = subprocess.run([sys.executable, "-c", PREEMPTED, spec], capture_output=True, text=True, cwd=ROOT)
    counted = re.search(r"^counted (\d+) 12$", ran.stdout, re.M)
    assert counted is not None, ran.stdout + ran.stderr
    assert int(counted[1]) > 0
    looked_up = re.search(r"^looked up (\d+) (\d+) (\d\.\d+)$", ran.stdout, re.M)
    assert looked_up is not None, ran.stdout + ran.stderr
    assert int(looked_up[1]) > int(looked_up[2]) and 0 <= float(looked_up[3]) <= 1
    assert re.search(r"^the same True 12$", ran.stdout, re.M), ran.stdout
    assert "begun False True True" in ran.stdout, "a request has begun when it has its first token"
    assert "too long {'request_timeout'}" in ran.stdout and "goes on 200" in ran.stdout, ran.stdout


def test_every_parameter_we_let_through_is_one_vllm_knows() -> None:
    for endpoint, schema in (
        (catalog.CHAT.path, internals.ChatCompletionRequest),
        (catalog.COMPLETIONS.path, internals.CompletionRequest),
        (catalog.GENERATE.path, internals.GenerateRequest),
        (catalog.GENERATIVE_SCORING.path, internals.GenerativeScoringRequest),
        (catalog.TRANSCRIPTIONS.path, internals.BatchTranscriptionRequest),
        (catalog.TRANSLATIONS.path, internals.BatchTranslationRequest),
    ):
        assert parameters.SUPPORTED[endpoint] <= set(schema.model_fields), endpoint
    schemas = get_args(get_args(internals.EmbeddingRequest)[0])
    known = set[str]().union(*(schema.model_fields for schema in schemas))
    assert parameters.SUPPORTED[catalog.EMBEDDINGS.path] <= known


NAMED = {"type": "function", "function": {"name": "f"}}
CALLS = [
    *((catalog.CHAT.path, choice) for choice in (None, "auto", "required", NAMED)),
    *((catalog.RESPONSES.path, choice) for choice in (None, "auto", "required", {"type": "function", "name": "f"})),
    *((catalog.MESSAGES.path, choice) for choice in (None, {"type": "auto"}, {"type": "any"}, {"type": "tool"})),
]


@pytest.mark.parametrize(("endpoint", "choice"), CALLS)
def test_tools_are_refused_unless_the_model_can_call_them(tiny: Path, endpoint: str, choice: Any) -> None:
    tools = [{"type": "function", "name": "f", "function": {"name": "f"}}]  # as both of OpenAI's endpoints name it
    body = {"model": "m", "tools": tools, **({} if choice is None else {"tool_choice": choice})}
    able = tiny_spec(tiny, enable_auto_tool_choice=True, tool_call_parser="hermes")
    refused = VLLM.unsupported(tiny_spec(tiny), endpoint, body)
    assert refused is not None and refused[0] == "body.tools" and "tool_call_parser" in refused[1]
    assert VLLM.unsupported(able, endpoint, body) is None


def test_tools_that_are_not_to_be_called_need_no_parser(tiny: Path) -> None:
    for endpoint, choice in (
        (CHAT, "none"),
        (catalog.RESPONSES.path, "none"),
        (catalog.MESSAGES.path, {"type": "none"}),
    ):
        assert VLLM.unsupported(tiny_spec(tiny), endpoint, {"tools": [TOOL], "tool_choice": choice}) is None
    assert VLLM.unsupported(tiny_spec(tiny), catalog.TOKENIZE.path, {"messages": [], "tools": [TOOL]}) is None


def test_a_choice_of_tools_needs_tools(tiny: Path) -> None:
    able = tiny_spec(tiny, enable_auto_tool_choice=True, tool_call_parser="hermes")
    for endpoint, choice in ((CHAT, "required"), (CHAT, NAMED), (catalog.MESSAGES.path, {"type": "any"})):
        refused = VLLM.unsupported(able, endpoint, {"tool_choice": choice})
        assert refused is not None and refused[0] == "body.tool_choice"


def test_an_unknown_parameter_is_refused_by_its_name(tiny: Path) -> None:
    unknown = VLLM.unsupported(tiny_spec(tiny), CHAT, chat("hi", no_such=1)[0])
    assert unknown is not None and unknown[0] == "body.no_such"
