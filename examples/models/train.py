"""Trains the example models `nano` and `mini` from nothing, and measures them on held-out problems.

The result is one ordinary model folder each (Hugging Face layout), which vLLM and transformers load by its path.
"""

import argparse
import hashlib
import json
import os
import platform
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from card import model_card
from problems import CHECK_SYSTEM_PROMPTS, SYSTEM_PROMPTS, TASKS, Problem, draw, held_out, invented_word
from tokenizer import ASSISTANT, END, SYSTEM, USER, make_tokenizer
from torch.nn import functional
from transformers import GenerationConfig, PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

HERE = Path(__file__).resolve().parent
CONTEXT = 1024
IGNORE = -100

# How often each task is drawn: the harder ones more often.
TASK_WEIGHTS = {"sum": 25, "sort": 8, "reverse": 8, "sentiment": 9, "check": 40, "fix": 10}


@dataclass(frozen=True)
class Plan:
    """What one model is, and how long it learns; every step reads `batch_tokens` tokens."""

    hidden: int
    layers: int
    heads: int
    feed_forward: int
    steps: int
    learning_rate: float = 2e-3
    batch_tokens: int = 4096


PLANS = {
    "nano": Plan(hidden=128, layers=2, heads=2, feed_forward=320, steps=600),
    "mini": Plan(hidden=256, layers=4, heads=4, feed_forward=640, steps=1200),
}


class Conversations:
    """An endless stream of training text: conversations over mixed tasks, back to back."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        self.rng = random.Random(seed)
        self.encode = tokenizer.backend_tokenizer.encode_batch
        self.fail = tokenizer.convert_tokens_to_ids("FAIL")

    def problem(self) -> Problem:
        """A training problem of any task; what is checked or fixed follows the weights, too."""
        rng = self.rng
        task = rng.choices(list(TASK_WEIGHTS), list(TASK_WEIGHTS.values()))[0]
        if task in TASKS:
            return draw(task, "train", rng)
        about = rng.choices(list(TASKS), [TASK_WEIGHTS[about] for about in TASKS])[0]
        while (problem := draw(task, "train", rng)).about != about:
            pass
        return problem

    def turn(self) -> list[tuple[str, str | None]]:
        """One exchange as texts, each with what is to be learned in its place: None for a text that is only read."""
        rng, problem = self.rng, self.problem()
        if rng.random() < 0.1:  # without roles, as the completions endpoint sends it
            question = "\n".join(problem.texts) + "\n"
        else:
            system = ""
            if rng.random() < 0.2:
                # Words never seen before teach the model to pass over a system prompt it does not know.
                strange = " ".join(invented_word(rng) for _ in range(rng.randint(2, 10)))
                prompts = SYSTEM_PROMPTS + CHECK_SYSTEM_PROMPTS * (problem.task == "check")
                system = SYSTEM + rng.choice((*prompts, strange)) + END
            question = system + "".join(USER + text + END for text in problem.texts) + ASSISTANT
        answer = problem.answer + END
        if problem.about is None:
            return [(question, None), (answer, answer)]
        before, _, after = question.rpartition("\n" + problem.proposed)
        return [(before + "\n", None), (problem.proposed, problem.right), (after, None), (answer, answer)]

    def targets(self, ids: list[int], right: list[int]) -> list[int]:
        """What is to be predicted in the place of each token of an answer, where `right` is the right one.

        The right token as long as all tokens before are right, FAIL after a wrong one. So who checks an answer learns
        at each token whether it is right, which the verdict alone teaches too slowly.
        """
        pairs = enumerate(zip(ids, right, strict=False))
        wrong = next((place for place, (token, other) in pairs if token != other), min(len(ids), len(right)))
        learned = [*right[: wrong + 1], *[IGNORE] * (wrong == len(right))]
        return (learned + [self.fail] * len(ids))[: len(ids)]

    def batch(self, tokens: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids and labels, int64 of shape (tokens // length, length); labels of what is only read are IGNORE."""
        ids: list[int] = []
        labels: list[int] = []
        while len(ids) < tokens:
            pieces = [piece for _ in range(64) for piece in self.turn()]
            texts = [encoded.ids for encoded in self.encode([text for text, _ in pieces])]
            rights = [encoded.ids for encoded in self.encode([right or "" for _, right in pieces])]
            for (_, right), text_ids, right_ids in zip(pieces, texts, rights, strict=True):
                ids += text_ids
                labels += [IGNORE] * len(text_ids) if right is None else self.targets(text_ids, right_ids)
        rows = tokens // length
        size = rows * length
        return torch.tensor(ids[:size]).view(rows, length), torch.tensor(labels[:size]).view(rows, length)


def new_model(plan: Plan, tokenizer: PreTrainedTokenizerBase) -> Qwen2ForCausalLM:
    """A Qwen2 model with random float32 weights."""
    special = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=plan.hidden,
        intermediate_size=plan.feed_forward,
        num_hidden_layers=plan.layers,
        num_attention_heads=plan.heads,
        num_key_value_heads=plan.heads,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        **special,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(do_sample=False, **special)
    return model


def take_over(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase, folder: Path) -> dict[str, object]:
    """Gives the model the weights in `folder`, whose tokens may have other numbers, and returns the record of these.

    Tokens that the earlier model did not know keep their random weights.
    """
    weights = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    numbers = transformers.AutoTokenizer.from_pretrained(folder).get_vocab()
    embeddings = model.get_input_embeddings().weight.detach().clone()
    for token, number in tokenizer.get_vocab().items():
        if token in numbers:
            embeddings[number] = weights["model.embed_tokens.weight"][numbers[token]]
    weights["model.embed_tokens.weight"] = weights["lm_head.weight"] = embeddings
    model.load_state_dict(weights)
    sha256 = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    return {"sha256": sha256, **json.loads((folder / "training.json").read_text())}


def train(name: str, out: Path, seed: int, steps: int, batch_tokens: int, start: Path | None = None) -> None:
    """Trains one model and writes its folder `out/name`, with float16 weights and a record `training.json`.

    It goes on from the weights in `start/name`, if there is a start.
    """
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    plan = PLANS[name]
    tokenizer = make_tokenizer(CONTEXT)
    conversations = Conversations(tokenizer, seed)
    model = new_model(plan, tokenizer).train()
    earlier = None if start is None else take_over(model, tokenizer, start / name)

    # Muon takes the matrices, AdamW the embeddings, biases and norms: far fewer steps than AdamW alone.
    matrices, others = [], []
    for key, parameter in model.named_parameters():
        (matrices if parameter.ndim == 2 and "embed" not in key else others).append(parameter)
    rate = plan.learning_rate
    optimizers = [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]

    started = time.monotonic()
    for step in range(steps):
        # Warm up for 100 steps, keep the rate, and let it fall over the second half.
        scale = min((step + 1) / 100, 1, 2 * (steps - step) / steps)
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate * scale
        # Every eighth batch has long rows, so that long prompts are nothing new.
        ids, labels = conversations.batch(batch_tokens, 512 if step % 8 == 7 else 128)
        answers = labels[:, 1:] != IGNORE
        with torch.autocast("cpu", torch.bfloat16):
            hidden = model.model(input_ids=ids[:, :-1]).last_hidden_state
            logits = model.lm_head(hidden[answers])
        loss = functional.cross_entropy(logits.float(), labels[:, 1:][answers])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if (step + 1) % 100 == 0:
            seconds = time.monotonic() - started
            print(f"{name} step {step + 1}/{steps} loss {loss.item():.4f} {seconds:.0f} s", flush=True)

    folder = out / name
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    record = {
        "seed": seed,
        "steps": steps,
        "tokens": steps * batch_tokens,
        "seconds": round(time.monotonic() - started),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    if earlier is not None:
        record["start"] = earlier
    (folder / "training.json").write_text(json.dumps(record, indent=2) + "\n")


@torch.inference_mode()
def answer(folder: Path, prompts: Sequence[str | Sequence[str]], batch_size: int = 125) -> list[str]:
    """Greedy answers of the saved model, computed in float32, to chat prompts of one or more messages of the user."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    answers: list[str] = []
    for start in range(0, len(prompts), batch_size):
        chats = [
            [{"role": "user", "content": text} for text in ([prompt] if isinstance(prompt, str) else prompt)]
            for prompt in prompts[start : start + batch_size]
        ]
        inputs = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        )
        output = model.generate(**inputs, max_new_tokens=48)
        answers += tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return answers


def exactly_right(folder: Path, problems: Sequence[Problem]) -> list[bool]:
    """Whether the model in `folder` answers each problem exactly."""
    given = answer(folder, [problem.texts for problem in problems])
    return [text == problem.answer for text, problem in zip(given, problems, strict=True)]


def accuracy(folder: Path, per_task: int, seed: int) -> dict[str, float]:
    """The share of held-out problems of every task that the model in `folder` answers exactly.

    Of `check` there are `per_task` for each task on average. Its share is the mean of that of right answers which pass
    and that of wrong ones which fail; both follow for each task, as in `sum PASS`.
    """
    result = {}
    for task in (*TASKS, "fix"):
        result[task] = statistics.fmean(exactly_right(folder, held_out(task, per_task, seed)))
        print(f"{folder.name} {task} {result[task]:.1%}", flush=True)
    checks = held_out("check", per_task * len(TASKS), seed)
    by_verdict, by_task = defaultdict(list), defaultdict(list)
    for right, problem in zip(exactly_right(folder, checks), checks, strict=True):
        by_verdict[problem.answer].append(right)
        by_task[f"{problem.about} {problem.answer}"].append(right)
    result["check"] = statistics.fmean(map(statistics.fmean, by_verdict.values()))
    print(f"{folder.name} check {result['check']:.1%}", flush=True)
    return result | {cell: statistics.fmean(rights) for cell, rights in sorted(by_task.items())}


def times_taken() -> str:
    """How long the models that lie here took to train, for the help text."""
    records = {name: HERE / name / "training.json" for name in PLANS}
    taken = {name: json.loads(path.read_text()) for name, path in records.items() if path.exists()}
    return "\n".join(
        f"{name} took {record['seconds'] / 60:.0f} minutes with {record['threads']} threads."
        for name, record in taken.items()
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains what was asked for, evaluates every model in the folder, and writes the model card beside them."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=times_taken(), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=PLANS, help="train only this model")
    parser.add_argument("--steps", type=int, help="training steps instead of the planned number")
    parser.add_argument("--batch-tokens", type=int, help="tokens per step instead of the planned number")
    parser.add_argument("--start", type=Path, help="folder of earlier models; training goes on from their weights")
    parser.add_argument("--quick", action="store_true", help="three tiny steps and no evaluation, for tests")
    parser.add_argument("--evaluate", action="store_true", help="train nothing, evaluate what lies there")
    parser.add_argument("--held-out", type=int, default=500, help="held-out problems per task (default %(default)s)")
    parser.add_argument("--seed", type=int, default=7, help="seed of weights and data (default %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="threads; another number may change the last bits")
    parser.add_argument("--out", type=Path, default=HERE, help="where the model folders go (default: here)")
    options = parser.parse_args(arguments)

    torch.set_num_threads(options.threads)
    if not options.evaluate:
        for name in [options.only] if options.only else PLANS:
            plan = PLANS[name]
            steps = options.steps or (3 if options.quick else plan.steps)
            tokens = 512 if options.quick else options.batch_tokens or plan.batch_tokens
            train(name, options.out, options.seed, steps, tokens, options.start)
    if not options.quick:
        folders = [options.out / name for name in PLANS if (options.out / name).exists()]
        measured = {folder: accuracy(folder, options.held_out, options.seed) for folder in folders}
        (options.out / "README.md").write_text(model_card(measured, options.held_out))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
