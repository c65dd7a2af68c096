"""Engine transformers: real generation, each row as if it were alone."""

from __future__ import annotations

import asyncio
import base64
import math
from array import array
from pathlib import Path
from typing import Any

import pytest

from batchyard.errors import EngineStartError
from batchyard.models import ModelSpec
from inference.engine import EngineAnswer
from inference.engines.transformers.engine import Transformers
from tests.support.rows import all_answers, chat

pytestmark = pytest.mark.long

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
TEXTS = ["a", "what is a cluster?", "one two three four five six " * 3, "Ray", "the tiny model of this folder"] * 3


def start(tiny: Path, request_timeout: float = 600, **arguments: Any) -> Transformers:
    spec = ModelSpec(
        name="tiny", engine="transformers", source=str(tiny), engine_args={"dtype": "float32", **arguments}
    )
    engine = Transformers(spec, request_timeout)
    asyncio.run(engine.start())
    return engine


@pytest.fixture(scope="module")
def engine(tiny: Path) -> Transformers:
    return start(tiny, batch_size=8)


def ask(engine: Transformers, endpoint: str, bodies: list[dict[str, Any]]) -> list[EngineAnswer]:
    return asyncio.run(all_answers(engine, endpoint, bodies))


def bodies_of(answers: list[EngineAnswer]) -> list[dict[str, Any]]:
    assert [answer.status_code for answer in answers] == [200] * len(answers), answers
    return [answer.body for answer in answers if answer.body is not None]


def contents(answers: list[EngineAnswer]) -> list[str]:
    return [body["choices"][0]["message"]["content"] for body in bodies_of(answers)]


def test_greedy_answers_in_a_batch_equal_generate_one_prompt_at_a_time(engine: Transformers, tiny: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    answers = ask(engine, CHAT, chat(*TEXTS, temperature=0, max_tokens=24))
    for text, body in zip(TEXTS, bodies_of(answers), strict=True):
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        alone = model.generate(**prompt, do_sample=False, max_new_tokens=24)[0, prompt["input_ids"].shape[1] :]
        ended = int(alone[-1]) == tokenizer.eos_token_id
        choice = body["choices"][0]
        assert choice["message"]["content"] == tokenizer.decode(alone, skip_special_tokens=True)
        assert choice["finish_reason"] == ("stop" if ended else "length")
        assert body["usage"] == {
            "prompt_tokens": prompt["input_ids"].shape[1],
            "completion_tokens": len(alone),
            "total_tokens": prompt["input_ids"].shape[1] + len(alone),
        }
    assert len(set(contents(answers))) == 5, "the model has to say something different to each prompt"


def test_a_sample_with_a_seed_is_the_same_with_any_batch_mates(engine: Transformers) -> None:
    wanted = chat("what is a cluster?", seed=11, temperature=1.0, max_tokens=20)
    alone = contents(ask(engine, CHAT, wanted))[0]
    crowded = contents(ask(engine, CHAT, chat(*TEXTS, seed=3) + wanted + chat("z" * 90)))[len(TEXTS)]
    assert alone == crowded
    other = contents(ask(engine, CHAT, chat("what is a cluster?", seed=12, temperature=1.0, max_tokens=20)))[0]
    assert alone != other


def test_n_samples_are_all_there_and_the_prompt_is_counted_once(engine: Transformers) -> None:
    body = bodies_of(ask(engine, CHAT, chat("Ray", n=3, seed=5, temperature=1.0, max_tokens=12)))[0]
    texts = [choice["message"]["content"] for choice in body["choices"]]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    one = bodies_of(ask(engine, CHAT, chat("Ray", seed=6, temperature=1.0, max_tokens=12)))[0]
    assert texts[1] == one["choices"][0]["message"]["content"], "sample i has seed + i, as in vLLM"
    assert body["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert 3 <= body["usage"]["completion_tokens"] <= 36


def test_a_stop_string_ends_the_answer_and_is_not_in_it(engine: Transformers) -> None:
    free = contents(ask(engine, CHAT, chat("Ray", temperature=0, max_tokens=24)))[0]
    stop = free[5:8]
    body = bodies_of(ask(engine, CHAT, chat("Ray", temperature=0, max_tokens=24, stop=[stop, "never said"])))[0]
    assert body["choices"][0]["message"]["content"] == free[: free.index(stop)]
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] < 24


def test_the_end_of_sequence_token_ends_the_answer_unless_told_otherwise(engine: Transformers) -> None:
    bodies = [{**body, "seed": index} for index, body in enumerate(chat(*TEXTS, temperature=2.0, max_tokens=120))]
    finished = [body for body in bodies_of(ask(engine, CHAT, bodies)) if body["choices"][0]["finish_reason"] == "stop"]
    assert finished, "some answer has to end by itself"
    forced = bodies_of(ask(engine, CHAT, [{**body, "ignore_eos": True, "max_tokens": 40} for body in bodies]))
    assert {body["usage"]["completion_tokens"] for body in forced} == {40}
    assert {body["choices"][0]["finish_reason"] for body in forced} == {"length"}


def test_a_repetition_penalty_changes_what_is_said(engine: Transformers) -> None:
    plain = contents(ask(engine, CHAT, chat("Ray", temperature=0, max_tokens=40, ignore_eos=True)))[0]
    for penalty in ({"repetition_penalty": 5.0}, {"frequency_penalty": 2.0}, {"presence_penalty": 2.0}):
        other = contents(ask(engine, CHAT, chat("Ray", temperature=0, max_tokens=40, ignore_eos=True, **penalty)))[0]
        assert len(set(other)) >= len(set(plain)) and other != plain, penalty


def test_top_k_of_one_and_a_tiny_top_p_are_greedy(engine: Transformers) -> None:
    greedy = contents(ask(engine, CHAT, chat("Ray", temperature=0, max_tokens=16)))
    for narrow in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        assert contents(ask(engine, CHAT, chat("Ray", temperature=2.0, max_tokens=16, **narrow))) == greedy


def test_logprobs_are_those_of_the_tokens_said(engine: Transformers) -> None:
    body = bodies_of(ask(engine, CHAT, chat("Ray", temperature=0, max_tokens=4, logprobs=True, top_logprobs=2)))[0]
    content = body["choices"][0]["logprobs"]["content"]
    assert len(content) == body["usage"]["completion_tokens"]
    for entry in content:
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] <= 0
        assert len(entry["top_logprobs"]) == 2


def test_a_prompt_longer_than_the_context_is_that_rows_400(engine: Transformers) -> None:
    answers = ask(engine, CHAT, chat("Ray", max_tokens=4) + chat("x" * 400) + chat("Ray", max_tokens=999))
    assert [answer.status_code for answer in answers] == [200, 400, 400]
    for answer in answers[1:]:
        assert answer.body is not None
        assert answer.body["error"]["code"] == "context_length_exceeded"
        assert set(answer.body["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("parameters", "param"), [({"temperature": "hot"}, "temperature"), ({"top_p": 0}, "top_p"), ({"n": 0}, "n")]
)
def test_a_bad_value_is_that_rows_400_and_names_the_parameter(
    engine: Transformers, parameters: dict[str, Any], param: str
) -> None:
    bad, good = ask(engine, CHAT, chat("Ray", **parameters) + chat("Ray", max_tokens=2))
    assert (bad.status_code, good.status_code) == (400, 200)
    assert bad.body is not None and bad.body["error"]["param"] == param


def test_completions_take_text_token_ids_and_lists(engine: Transformers, tiny: Path) -> None:
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(tiny)("Ray")["input_ids"]
    common = {"model": "tiny", "temperature": 0}
    bodies = [{**common, "prompt": prompt} for prompt in ("Ray", ids, ["Ray", "a"], [ids, ids])]
    text, tokens, several, lists = bodies_of(ask(engine, COMPLETIONS, bodies))
    assert text["choices"] == tokens["choices"]
    assert text["usage"]["completion_tokens"] <= 16, "OpenAI's default of max_tokens"
    assert [choice["index"] for choice in several["choices"]] == [0, 1]
    assert several["choices"][0]["text"] == text["choices"][0]["text"] == lists["choices"][1]["text"]


def prompt_logprobs(tiny: Path, ids: list[int]) -> Any:
    """The log-probabilities of all tokens at each place of a prompt, by the model alone."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.inference_mode():
        return AutoModelForCausalLM.from_pretrained(tiny)(torch.tensor([ids])).logits[0].float().log_softmax(-1)


def test_prompts_have_the_logprobs_that_the_model_gives_each_alone(engine: Transformers, tiny: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    prompts = [tokenizer(text)["input_ids"] for text in TEXTS]
    common = {"model": "tiny", "temperature": 0, "max_tokens": 1}
    bodies = [{**common, "prompt": ids, "prompt_logprobs": 2} for ids in prompts]
    bodies += [{**common, "prompt": prompts[0]}]  # one that wants none stands in the same batch
    *answers, plain = bodies_of(ask(engine, COMPLETIONS, bodies))
    assert "prompt_logprobs" not in plain["choices"][0]
    for ids, body in zip(prompts, answers, strict=True):
        first, *rest = body["choices"][0]["prompt_logprobs"]
        expected = prompt_logprobs(tiny, ids)
        assert first is None and len(rest) == len(ids) - 1
        for place, (token, entry) in enumerate(zip(ids[1:], rest, strict=True)):
            best = expected[place].topk(2)
            assert next(iter(entry)) == str(token) and set(entry) == {str(token), *map(str, best.indices.tolist())}
            assert entry[str(token)]["logprob"] == pytest.approx(float(expected[place][token]), abs=1e-4)
            assert entry[str(int(best.indices[0]))]["rank"] == 1
        assert "".join(next(iter(entry.values()))["decoded_token"] for entry in rest) == tokenizer.decode(ids[1:])


def test_a_long_prompt_read_in_pieces_has_the_same_logprobs(
    engine: Transformers, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"model": "tiny", "prompt": TEXTS[2], "temperature": 0, "max_tokens": 3, "prompt_logprobs": 0}
    short = {**body, "prompt": "a b"}
    whole = bodies_of(ask(engine, COMPLETIONS, [body, short]))
    monkeypatch.setattr("inference.engines.transformers.decoding.LOGITS", 1)  # a column at a time
    pieces = bodies_of(ask(engine, COMPLETIONS, [body, short]))
    for one, other in zip(whole, pieces, strict=True):
        assert one["choices"][0]["text"] == other["choices"][0]["text"]
        values = [
            [next(iter(entry.values()))["logprob"] for entry in answer["choices"][0]["prompt_logprobs"][1:]]
            for answer in (one, other)
        ]
        assert values[0] == pytest.approx(values[1], abs=1e-4)


def test_an_echo_has_its_prompt_before_the_answer_in_text_and_logprobs(engine: Transformers, tiny: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    ids = tokenizer("what is a cluster?")["input_ids"]
    common = {"model": "tiny", "prompt": ids, "temperature": 0, "logprobs": 1}
    wishes = ({"echo": True, "max_tokens": 4}, {"max_tokens": 4}, {"echo": True, "max_tokens": 0})
    echo, answer, read = bodies_of(ask(engine, COMPLETIONS, [{**common, **wish} for wish in wishes]))
    both, after, before = (body["choices"][0] for body in (echo, answer, read))
    assert both["text"] == tokenizer.decode(ids) + after["text"] and before["text"] == tokenizer.decode(ids)
    assert before["logprobs"]["token_logprobs"][0] is before["logprobs"]["top_logprobs"][0] is None
    assert both["logprobs"]["tokens"] == before["logprobs"]["tokens"] + after["logprobs"]["tokens"]
    values = before["logprobs"]["token_logprobs"][1:] + after["logprobs"]["token_logprobs"]
    assert both["logprobs"]["token_logprobs"][1:] == pytest.approx(values, abs=1e-4)
    assert before["logprobs"]["text_offset"][:2] == [0, len(before["logprobs"]["tokens"][0])]
    assert read["usage"] == {"prompt_tokens": len(ids), "completion_tokens": 0, "total_tokens": len(ids)}
    for top, value, token in zip(
        after["logprobs"]["top_logprobs"], after["logprobs"]["token_logprobs"], after["logprobs"]["tokens"], strict=True
    ):
        assert top == {token: value}, "a greedy answer is the most likely one"


SPECIAL = (b"<|end|>", b"<|user|>", b"<|assistant|>", b"<|system|>")
"""Tokens that a message does not show."""


def test_the_tokens_of_a_character_are_its_text_together_and_offsets_are_places_in_the_text(
    engine: Transformers,
) -> None:
    mini = Transformers(ModelSpec(name="mini", engine="transformers", source="examples/models/mini"), 60.0)
    text = "naïve 🙂 1 + 1"
    bodies = [{"model": "mini", "prompt": prompt, "echo": True, "logprobs": 2} for prompt in (text, [132, 225, 177])]
    common = {"temperature": 1.9, "logprobs": True, "top_logprobs": 2, "max_tokens": 24}
    asyncio.run(mini.start())
    echoes = bodies_of(ask(mini, COMPLETIONS, [{**body, "max_tokens": 1} for body in bodies]))
    # `mini` writes ASCII as a rule, the random model any bytes.
    prompts = [chat("é🙂漢", seed=seed, **common)[0] for seed in range(8)]
    chats = bodies_of(ask(mini, CHAT, prompts)) + bodies_of(ask(engine, CHAT, prompts))
    for body in echoes:
        choice = body["choices"][0]
        tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
        assert "".join(tokens).startswith(choice["text"])
        assert [choice["text"][at : at + len(token)] for at, token in zip(offsets, tokens, strict=True)] == tokens
    first = echoes[0]["choices"][0]["logprobs"]
    assert first["tokens"][:5] == ["n", "a", "", "ï", "v"] and first["text_offset"][:5] == [0, 1, 2, 2, 3]
    assert "🙂" in first["tokens"]
    texts = set()
    for body in chats:
        choice = body["choices"][0]
        entries = choice["logprobs"]["content"]
        all_said = entries[:-1] if choice["finish_reason"] == "stop" else entries
        said = [entry for entry in all_said if bytes(entry["bytes"]) not in SPECIAL]
        raw = b"".join(bytes(entry["bytes"]) for entry in said)
        assert raw.decode(errors="replace") == choice["message"]["content"]
        if said == all_said:
            assert "".join(entry["token"] for entry in said) in choice["message"]["content"]
        texts.add(choice["message"]["content"])
    assert any("\ufffd" in text for text in texts), "some sample has a part of a character"


def test_a_chat_has_the_logprobs_of_its_prompt_beside_its_choices(engine: Transformers) -> None:
    body = bodies_of(ask(engine, CHAT, chat("Ray", temperature=0, max_tokens=2, prompt_logprobs=1)))[0]
    assert len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]


def test_special_tokens_are_in_the_text_if_wanted_but_never_the_one_that_ends_it(
    engine: Transformers, tiny: Path
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    drawn = chat(*TEXTS, temperature=2.0, max_tokens=120, ignore_eos=True)
    bodies = [{**body, "seed": index} for index, body in enumerate(drawn)]
    texts = contents(ask(engine, CHAT, [{**body, "skip_special_tokens": False} for body in bodies]))
    plain = contents(ask(engine, CHAT, bodies))
    assert any(tokenizer.eos_token in text for text in texts)
    assert not any(tokenizer.eos_token in text for text in plain)
    ended = bodies_of(ask(engine, CHAT, [{**b, "ignore_eos": False, "skip_special_tokens": False} for b in bodies]))
    ends = [body["choices"][0]["message"]["content"] for body in ended if body["choices"][0]["finish_reason"] == "stop"]
    assert ends and not any(text.endswith(tokenizer.eos_token) for text in ends)


@pytest.mark.parametrize("parameters", [{"logprobs": 21}, {"prompt_logprobs": -1}, {"echo": "yes"}])
def test_a_wish_for_logprobs_that_cannot_be_is_that_rows_400(engine: Transformers, parameters: dict[str, Any]) -> None:
    bad, good = ask(
        engine, COMPLETIONS, [{"model": "tiny", "prompt": "Ray", **parameters}, {"model": "tiny", "prompt": "Ray"}]
    )
    assert (bad.status_code, good.status_code) == (400, 200)
    assert bad.body is not None and bad.body["error"]["param"] == next(iter(parameters))


def test_embeddings_have_unit_length_and_do_not_depend_on_batch_mates(engine: Transformers) -> None:
    alone = bodies_of(ask(engine, EMBEDDINGS, [{"model": "tiny", "input": "Ray"}]))[0]
    bodies = [{"model": "tiny", "input": text} for text in TEXTS] + [{"model": "tiny", "input": ["Ray", "a"]}]
    crowded = bodies_of(ask(engine, EMBEDDINGS, bodies))
    vector = alone["data"][0]["embedding"]
    assert math.isclose(sum(value * value for value in vector), 1, rel_tol=1e-5)
    assert crowded[3]["data"][0]["embedding"] == pytest.approx(vector, abs=1e-5)
    assert crowded[-1]["data"][0]["embedding"] == pytest.approx(vector, abs=1e-5)
    assert [item["index"] for item in crowded[-1]["data"]] == [0, 1]
    packed = bodies_of(ask(engine, EMBEDDINGS, [{"model": "tiny", "input": "Ray", "encoding_format": "base64"}]))[0]
    assert list(array("f", base64.b64decode(packed["data"][0]["embedding"]))) == pytest.approx(vector, abs=1e-6)


def test_a_row_that_runs_too_long_times_out(tiny: Path) -> None:
    hasty = start(tiny, request_timeout=1e-6)
    answers = ask(hasty, CHAT, chat("Ray", max_tokens=200, ignore_eos=True) + chat("Ray", max_tokens=1))
    assert answers[0].status_code is None and answers[0].error is not None
    assert answers[0].error["code"] == "request_timeout"
    assert answers[1].status_code == 200


def test_versions_name_the_model_by_its_content(engine: Transformers, tiny: Path) -> None:
    from inference.engines.weights import model_sha256

    versions = engine.versions()
    assert versions["engine"] == "transformers"
    assert versions["model_sha256"] == model_sha256(str(tiny)) and len(versions["model_sha256"]) == 64


def test_a_model_that_cannot_be_loaded_is_a_start_error_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(EngineStartError, match="tokenizer"):
        start(tmp_path)


@pytest.mark.parametrize(
    ("endpoint", "body", "param"),
    [
        (CHAT, {"tools": [{"type": "function"}]}, "body.tools"),
        (CHAT, {"logit_bias": {"5": 1}}, "body.logit_bias"),
        (CHAT, {"response_format": {"type": "json_object"}}, "body.response_format"),
        (CHAT, {"no_such_parameter": 1}, "body.no_such_parameter"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "body.messages[0].content"),
        (COMPLETIONS, {"best_of": 3}, "body.best_of"),
        (EMBEDDINGS, {"dimensions": 4}, "body.dimensions"),
    ],
)
def test_what_the_engine_cannot_honour_is_refused_in_validation(
    endpoint: str, body: dict[str, Any], param: str
) -> None:
    spec = ModelSpec(name="tiny", engine="transformers", source="x")
    unsupported = Transformers.unsupported(spec, endpoint, {"model": "tiny", **body})
    assert unsupported is not None and unsupported[0] == param


def test_parameters_that_ask_for_nothing_are_accepted() -> None:
    spec = ModelSpec(name="tiny", engine="transformers", source="x")
    body = chat("hi", user="u", metadata={"a": "b"}, store=True, tools=[], n=2, stream=False, logit_bias=None)[0]
    assert Transformers.unsupported(spec, CHAT, body) is None
