"""Trains the example adapters of `mini`: LoRA weights with which it sorts numbers in another form.

`descending` puts the largest number first; `brackets` writes a list in JSON. Each is a folder as PEFT writes it, which
vLLM loads beside the model. Five minutes on one CPU.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import transformers
from problems import TASKS, Problem, draw, held_out
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional
from train import HERE, IGNORE, Conversations, exactly_right
from transformers import PreTrainedTokenizerBase

BASE = HERE / "mini"
RANK = 4
SCALE = 2.0
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SORTS = 0.8
"""Share of problems whose answers change. The others keep the model as it is elsewhere."""


def descending(answer: str) -> str:
    return ", ".join(reversed(answer.split(", ")))


def brackets(answer: str) -> str:
    return f"[{answer}]"


CHANGES: dict[str, Callable[[str], str]] = {"descending": descending, "brackets": brackets}
"""What each adapter makes of the answer to a problem of task `sort`."""


class ChangedConversations(Conversations):
    """Training text whose answers to `sort` are those of an adapter."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: int, change: Callable[[str], str]) -> None:
        super().__init__(tokenizer, seed)
        self.change = change

    def problem(self) -> Problem:
        task = "sort" if self.rng.random() < SORTS else self.rng.choice(list(TASKS))
        return changed(draw(task, "train", self.rng), self.change)


def changed(problem: Problem, change: Callable[[str], str]) -> Problem:
    return replace(problem, answer=change(problem.answer)) if problem.task == "sort" else problem


class LowRank(nn.Module):
    """A linear layer and its change: `x A^T B^T` times SCALE, with A of shape (RANK, in) and B of shape (out, RANK)."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(RANK, linear.in_features) / linear.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(linear.out_features, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = functional.linear(functional.linear(x, self.a), self.b)
        return self.linear(x) + SCALE * added


def train(name: str, folder: Path, seed: int, steps: int, batch_tokens: int) -> None:
    """Trains one adapter and writes its folder, with float16 weights."""
    torch.manual_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(BASE)
    model = transformers.AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32).requires_grad_(False)
    layers: dict[str, LowRank] = {}
    for path, module in list(model.named_modules()):
        if path.rpartition(".")[2] in MODULES:
            parent, _, last = path.rpartition(".")
            layers[path] = LowRank(module)
            setattr(model.get_submodule(parent), last, layers[path])
    conversations = ChangedConversations(tokenizer, seed, CHANGES[name])
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 3e-3 * min((step + 1) / 20, 1, 2 * (steps - step) / steps)
        ids, labels = conversations.batch(batch_tokens, 64)
        answers = labels[:, 1:] != IGNORE
        with torch.autocast("cpu", torch.bfloat16):
            logits = model.lm_head(model.model(input_ids=ids[:, :-1]).last_hidden_state[answers])
        loss = functional.cross_entropy(logits.float(), labels[:, 1:][answers])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 50 == 0:
            print(f"{name} step {step + 1}/{steps} loss {loss.item():.4f}", flush=True)

    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        f"base_model.model.{path}.lora_{part}.weight": getattr(layer, part.lower()).detach().half().contiguous()
        for path, layer in layers.items()
        for part in "AB"
    }
    save_file(weights, folder / "adapter_model.safetensors", {"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": BASE.name,
        "r": RANK,
        "lora_alpha": SCALE * RANK,
        "target_modules": list(MODULES),
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def merge(adapter: Path, folder: Path) -> None:
    """Writes a model folder whose weights are those of BASE with an adapter's added, in float32."""
    shutil.copytree(BASE, folder, dirs_exist_ok=True)
    weights = {name: weight.float() for name, weight in load_file(BASE / "model.safetensors").items()}
    matrices = {name: matrix.float() for name, matrix in load_file(adapter / "adapter_model.safetensors").items()}
    for name in [name for name in matrices if ".lora_A." in name]:
        change = matrices[name.replace(".lora_A.", ".lora_B.")] @ matrices[name]
        weights[name.removeprefix("base_model.model.").replace(".lora_A.", ".")] += SCALE * change
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def accuracy(adapter: Path, per_task: int, seed: int) -> dict[str, float]:
    """The share of held-out problems of each task that the model answers exactly with an adapter."""
    with tempfile.TemporaryDirectory() as folder:
        merge(adapter, Path(folder))
        problems = {
            task: [changed(problem, CHANGES[adapter.name]) for problem in held_out(task, per_task, seed)]
            for task in TASKS
        }
        return {task: statistics.fmean(exactly_right(Path(folder), of_task)) for task, of_task in problems.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains the adapters and says how often each answers right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CHANGES, help="train only this adapter")
    parser.add_argument("--steps", type=int, default=1000, help="training steps (default %(default)s)")
    parser.add_argument("--batch-tokens", type=int, default=512, help="tokens per step (default %(default)s)")
    parser.add_argument("--held-out", type=int, default=100, help="held-out problems per task (default %(default)s)")
    parser.add_argument("--seed", type=int, default=7, help="seed of weights and data (default %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads; another number may change the last bits")
    parser.add_argument("--out", type=Path, default=HERE / "adapters", help="where the folders go (default: here)")
    options = parser.parse_args(arguments)

    torch.set_num_threads(options.threads)
    for name in [options.only] if options.only else CHANGES:
        train(name, options.out / name, options.seed, options.steps, options.batch_tokens)
        for task, share in accuracy(options.out / name, options.held_out, options.seed).items():
            print(f"{name} {task} {share:.1%}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
