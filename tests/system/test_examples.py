"""The contents of `examples/`: the request files and the models, both of which can be made again."""

import base64
import hashlib
import io
import json
import random
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from batchyard import settings
from batchyard.recipes import Item
from tasks.context import build
from tasks.intake import preview

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MODELS = EXAMPLES / "models"
sys.path[:0] = [str(EXAMPLES), str(MODELS)]

import make_requests  # noqa: E402
import problems  # noqa: E402


def read(name: str) -> list[dict[str, Any]]:
    """Return the requests of one file of `examples/`."""
    return [json.loads(line) for line in (EXAMPLES / name).read_text().splitlines()]


def polarity(clause: str) -> int:
    """Return 1, 0 or -1 for one clause of a review, from its words alone."""
    words = set(re.findall(r"[a-z]+", clause))
    sign = bool(words & set(problems.POSITIVE)) - bool(words & set(problems.NEGATIVE))
    return -sign if words & {"not", "never", "hardly", "anything"} else sign


def solve(task: str, prompt: str) -> str:
    """Return the right answer to a prompt, by other means than the generator's."""
    if task == "sum":
        return str(sum(map(int, re.findall(r"\d+", prompt))))
    if task == "sort":
        return ", ".join(sorted(re.findall(r"\d+", prompt), key=int))
    if task == "reverse":
        return "".join(reversed(re.findall(r'"(\w+)"', prompt)[0]))
    review = re.findall(r"The [a-z]+ was [^.]+\.", prompt)[0]
    total = sum(polarity(clause) for clause in re.split(r"; |,? and |(?<!anything) but ", review))
    return json.dumps({"sentiment": "positive" if total > 0 else "negative" if total < 0 else "neutral"})


def test_the_request_file_holds_a_thousand_requests_with_ids_of_their_own() -> None:
    requests = read("requests.jsonl")
    assert len(requests) >= 1000
    assert len({request["custom_id"] for request in requests}) == len(requests)


@pytest.mark.parametrize("name", ["requests.jsonl", "quickstart.jsonl"])
def test_every_line_is_a_deterministic_chat_completion_request(name: str) -> None:
    for request in read(name):
        assert set(request) == {"custom_id", "method", "url", "body"}
        assert (request["method"], request["url"]) == ("POST", "/v1/chat/completions")
        assert request["body"]["temperature"] == 0
        assert [message["role"] for message in request["body"]["messages"]] == ["user"]


def test_all_tasks_are_there_in_turn() -> None:
    tasks = [request["body"]["metadata"]["task"] for request in read("requests.jsonl")]
    assert set(Counter(tasks).values()) == {len(tasks) // len(problems.TASKS)}
    assert tasks[:4] == tasks[4:8] == list(problems.TASKS)


@pytest.mark.parametrize("name", ["requests.jsonl", "quickstart.jsonl"])
def test_the_request_file_names_every_expected_answer(name: str) -> None:
    for request in read(name):
        metadata = request["body"]["metadata"]
        assert metadata["expected"] == solve(metadata["task"], request["body"]["messages"][0]["content"])


def test_the_items_of_a_job_name_the_right_answer() -> None:
    for item in read("panel.jsonl"):
        assert item["answer"] == solve(item["custom_id"].partition("-")[0], item["prompt"])


def test_the_request_files_are_made_again_from_their_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["make_requests.py", "--out", str(tmp_path)])
    make_requests.main()
    for name in ("requests.jsonl", "quickstart.jsonl", "panel.jsonl"):
        assert (tmp_path / name).read_bytes() == (EXAMPLES / name).read_bytes()


@pytest.mark.parametrize("task", problems.TASKS)
def test_no_training_problem_is_held_out_in_any_wording(task: str) -> None:
    rng = random.Random(1)
    trained = {problems.draw(task, "train", rng).content for _ in range(5000)}
    assert trained.isdisjoint(problem.content for problem in problems.held_out(task, 500, seed=11))


@pytest.mark.parametrize("task", problems.REVIEW_TASKS)
def test_an_answer_that_is_checked_or_fixed_belongs_to_a_problem_of_the_same_split(task: str) -> None:
    for problem in problems.held_out(task, 500, seed=11):
        alone = problems.Problem(problem.about or "", problem.content, problem.prompt, "")
        assert alone.split == problem.split == "held_out"


def test_half_of_the_checked_answers_are_wrong_and_the_verdict_says_which() -> None:
    checks = problems.held_out("check", 2000, seed=11)
    for problem in checks:
        right = problem.proposed == solve(problem.about or "", problem.prompt)
        assert problem.answer == ("PASS" if right else "FAIL")
        assert f"\n{problem.proposed}" in problem.further[0]
    assert 0.45 < sum(problem.answer == "FAIL" for problem in checks) / len(checks) < 0.55


def test_a_fix_gives_a_wrong_answer_with_a_remark_and_expects_the_right_one() -> None:
    for problem in problems.held_out("fix", 1000, seed=11):
        assert problem.answer == solve(problem.about or "", problem.prompt) != problem.proposed
        assert f"\n{problem.proposed}" in problem.further[0]


def test_a_wrong_answer_resembles_a_right_one() -> None:
    rng = random.Random(1)
    for _ in range(1000):
        problem = problems.draw("sum", "train", rng)
        wrong, remark = problems.wrong_answer(problem, rng)
        if remark == problems.DIGIT:  # by one in some digit
            assert abs(int(wrong) - int(problem.answer)) in {1, 10, 100, 1000} or int(problem.answer) == 0
        problem = problems.draw("sort", "train", rng)
        wrong, remark = problems.wrong_answer(problem, rng)
        if remark == problems.ORDER:
            assert sorted(wrong.split(", ")) == sorted(problem.answer.split(", "))


def test_both_model_folders_together_stay_below_8_mb() -> None:
    files = [file for name in ("nano", "mini") for file in (MODELS / name).iterdir()]
    assert sum(file.stat().st_size for file in files) <= 8_000_000


def test_the_model_card_has_an_accuracy_for_every_task_and_model() -> None:
    card = (MODELS / "README.md").read_text()
    for task in problems.TASKS | problems.REVIEW_TASKS:
        assert re.search(rf"^\| {task} \| \d+\.\d% \| \d+\.\d% \|$", card, re.MULTILINE)


@pytest.mark.parametrize("name", ["embed", "rerank", "sentiment"])
def test_an_encoder_stays_below_1_mb_and_its_card_has_what_was_measured(name: str) -> None:
    assert sum(file.stat().st_size for file in (MODELS / name).rglob("*") if file.is_file()) < 1_000_000
    assert re.search(rf"^\| `{name}` \| .* \| \d+\.\d% \|$", (MODELS / "encoders.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", ["colours", "tones"])
def test_a_model_that_sees_or_hears_stays_below_2_mb_and_its_card_has_what_was_measured(name: str) -> None:
    assert sum(file.stat().st_size for file in (MODELS / name).rglob("*") if file.is_file()) < 2_000_000
    shares = re.findall(r"\| (\d+\.\d)% \|$", (MODELS / f"{name}.md").read_text(), re.MULTILINE)
    assert len(shares) >= 4 and all(float(share) > 80 for share in shares)


@pytest.mark.parametrize("name", ["nano", "mini"])
@pytest.mark.long
def test_a_model_answers_a_sum_and_a_sentiment_in_the_right_form(name: str) -> None:
    train = pytest.importorskip("train", reason="needs torch and transformers", exc_type=ImportError)
    answers = train.answer(MODELS / name, ["What is 3 + 4?", "Review: The food was great.\nSentiment:"])
    assert answers[0].isdigit()
    assert json.loads(answers[1]) == {"sentiment": "positive"}
    if name == "mini":
        assert answers[0] == "7"


@pytest.mark.long
def test_mini_passes_a_right_answer_fails_a_wrong_one_and_answers_again_after_a_remark() -> None:
    train = pytest.importorskip("train", reason="needs torch and transformers", exc_type=ImportError)
    item = Item(0, "item-0", {"prompt": "Review: The food was not bad.\nSentiment:"})
    right, wrong = '{"sentiment": "positive"}', '{"sentiment": "negative"}'
    chats = [
        item.chat(f"Check this answer:\n{right}"),
        item.chat(f"Check this answer:\n{wrong}"),
        item.chat(f"Your answer:\n{wrong}", "It is wrong. Answer again."),
    ]
    prompts = [[message["content"] for message in chat] for chat in chats]
    assert train.answer(MODELS / "mini", prompts) == ["PASS", "FAIL", right]


def test_a_conversation_with_a_system_prompt_and_unknown_keys_is_accepted() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODELS / "mini")
    messages = [
        {"role": "system", "content": "Be brief.", "name": "nobody"},
        {"role": "user", "content": [{"type": "text", "text": "1 + 1 ="}], "weight": 0.5},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "user", "content": "Sum, once more"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|system|>Be brief.<|end|><|user|>1 + 1 =<|end|><|assistant|><|end|><|user|>Sum, once more<|end|><|assistant|>"
    )
    assert tokenizer.convert_ids_to_tokens(tokenizer.eos_token_id) == "<|end|>"
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


def test_digits_and_the_letters_of_a_quoted_word_are_single_tokens() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODELS / "mini")
    assert tokenizer.tokenize("What is 4072") == ["What", "Ġis", "Ġ", *"4072"]
    assert tokenizer.tokenize('Reverse the word "was".')[-5:-1] == ['Ġ"', *"was"]
    strange = "Grüße, 世界\n\ttwo  spaces"
    assert tokenizer.decode(tokenizer.encode(strange)) == strange


def test_at_each_token_of_an_answer_the_right_one_is_learned_and_fail_after_a_wrong_one() -> None:
    train = pytest.importorskip("train", reason="needs torch and transformers", exc_type=ImportError)
    conversations = train.Conversations(train.make_tokenizer(train.CONTEXT), seed=1)
    fail, nothing = conversations.fail, train.IGNORE
    assert conversations.targets([11, 12, 13], [11, 12, 13]) == [11, 12, 13]
    assert conversations.targets([11, 22, 13, 14], [11, 12, 13]) == [11, 12, fail, fail]
    assert conversations.targets([11, 12], [11, 12, 13]) == [11, 12]
    assert conversations.targets([11, 12, 13, 14], [11, 12]) == [11, 12, nothing, fail]


@pytest.mark.long
def test_training_goes_on_from_earlier_weights_and_records_them(tmp_path: Path) -> None:
    train = pytest.importorskip("train", reason="needs torch and transformers", exc_type=ImportError)
    train.main(["--quick", "--only", "nano", "--start", str(MODELS), "--out", str(tmp_path)])
    assert train.answer(tmp_path / "nano", ["Review: The food was great.\nSentiment:"]) == ['{"sentiment": "positive"}']
    record = json.loads((tmp_path / "nano" / "training.json").read_text())
    weights = (MODELS / "nano" / "model.safetensors").read_bytes()
    assert record["start"]["sha256"] == hashlib.sha256(weights).hexdigest()


@pytest.mark.long
@pytest.mark.exhaustive
def test_training_twice_from_one_seed_gives_the_same_weights(tmp_path: Path) -> None:
    train = pytest.importorskip("train", reason="needs torch and transformers", exc_type=ImportError)
    weights = []
    for run, seed in (("first", "1"), ("second", "1"), ("other", "2")):
        train.main(["--quick", "--only", "nano", "--seed", seed, "--out", str(tmp_path / run)])
        weights.append((tmp_path / run / "nano" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.long
def test_training_an_encoder_twice_from_one_seed_gives_the_same_weights(tmp_path: Path) -> None:
    encoders = pytest.importorskip("encoders", reason="needs torch and transformers", exc_type=ImportError)
    weights = []
    for run, seed in (("first", "1"), ("second", "1"), ("other", "2")):
        encoders.main(["--only", "embed", "--steps", "2", "--seed", seed, "--out", str(tmp_path / run)])
        weights.append((tmp_path / run / "embed" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.parametrize("name", ["colours", "tones"])
@pytest.mark.long
def test_training_a_model_that_sees_or_hears_twice_from_one_seed_gives_the_same_weights(
    name: str, tmp_path: Path
) -> None:
    script = pytest.importorskip(name, reason="needs torch and transformers", exc_type=ImportError)
    weights = []
    for run, seed in (("first", 1), ("second", 1), ("other", 2)):
        script.train(tmp_path / run, seed, 2)
        weights.append((tmp_path / run / name / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.parametrize(("name", "model"), [("images.jsonl", "eyes"), ("tools.jsonl", "hands")])
def test_requests_with_images_or_tools_are_taken_by_a_model_that_knows_them(
    tmp_path: Path, name: str, model: str
) -> None:
    endpoint = 'engine = "openai"\nengine_args = {endpoints = [{url = "http://127.0.0.1:1/v1"}]}\n'
    (tmp_path / "models.toml").write_text(f"[models.{model}]\n{endpoint}")
    context = build(settings.load(data=tmp_path, models=tmp_path / "models.toml"))
    content = (EXAMPLES / name).read_bytes()
    looked_at = preview.of_requests(context, "/v1/chat/completions", content, whole=True)
    context.database.close()
    assert (looked_at.errors, looked_at.count) == ([], 2)
    for request in looked_at.requests:
        parts = request["body"]["messages"][0]["content"]
        if name == "images.jsonl":
            encoded = parts[1]["image_url"]["url"].removeprefix("data:image/png;base64,")
            assert Image.open(io.BytesIO(base64.b64decode(encoded))).size == (16, 16)
        else:
            assert request["body"]["tools"][0]["function"]["name"] == "get_weather"
