"""The model card of the example models, written from what was measured."""

import json
from pathlib import Path

from transformers import AutoConfig, AutoModelForCausalLM

CARD = """\
# Model card: {names}

<!-- Written by train.py; change the text in card.py. -->

Small language models of our own, trained from nothing by `train.py` in this folder, so that Batchyard can be tried and
tested with real inference where no weights can be downloaded. Ordinary model folders: vLLM and transformers load them
by path. The weights are stored in float16; run the engines with `dtype="float32"`, as the evaluation below did.

## What they are for
Examples, tests, and the comparison of a smaller with a larger model on tasks whose answers can be checked:

| task | example | answer |
|---|---|---|
| sum: two numbers of up to 3 digits | `What is 37 + 58?` | `95` |
| sort: 3 to 6 different numbers below 100 | `Sort these numbers: 42, 7, 19` | `7, 19, 42` |
| reverse: a quoted word of 3 to 8 lower-case letters | `Reverse the word "garden".` | `nedrag` |
| sentiment: a templated review, with negations and contradictions | `Review: The food was not bad.\\nSentiment:` | \
`{{"sentiment": "positive"}}` |

`problems.py` has every phrasing. System prompts and several turns work. The completions endpoint, which uses no chat
template, wants the question and a line break as its prompt. Training text came in rows of at most 512 tokens: longer
prompts are taken, up to the context, but answered worse.

## What they are not for
Anything else. They know no language beyond these templates, nothing about the world, and answer any other prompt with
nonsense. Their scores say nothing about language models of useful size.

## Accuracy on held-out problems
Share of exactly right answers, greedy decoding in float32 with transformers, {per_task} problems per task. A problem is
held out by a hash of its content, so it was not trained on in any phrasing.

{accuracy}

## Models and training
Qwen2 architecture with tied embeddings. Byte-level tokenizer whose only merged tokens are the words of the tasks:
digits, and letters of quoted words, are one token each.

{models}

Made with Python {python}, torch {torch}, transformers {transformers}. The same seed gives the same weights on the same
kind of processor with the same versions and number of threads. The matrices are multiplied in bfloat16 during training,
which is slow on processors without instructions for it.

    python examples/models/train.py              # trains and evaluates both
    python examples/models/train.py --evaluate   # only measures again, and rewrites this page
"""


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows))


def describe(folder: Path) -> dict[str, str]:
    """What the model in `folder` is and how it was trained, as label → text."""
    config = AutoConfig.from_pretrained(folder)
    record = json.loads((folder / "training.json").read_text())
    size = sum(file.stat().st_size for file in folder.iterdir())
    return {
        "parameters": f"{AutoModelForCausalLM.from_pretrained(folder).num_parameters():,}",
        "layers": f"{config.num_hidden_layers}",
        "hidden size": f"{config.hidden_size}",
        "feed-forward size": f"{config.intermediate_size}",
        "heads": f"{config.num_attention_heads} of size {config.hidden_size // config.num_attention_heads}",
        "vocabulary": f"{config.vocab_size}",
        "context, tokens": f"{config.max_position_embeddings}",
        "folder, MB": f"{size / 1e6:.2f}",
        "seed": f"{record['seed']}",
        "training steps": f"{record['steps']:,}",
        "training tokens": f"{record['tokens']:,}",
        "training time, minutes": f"{record['seconds'] / 60:.1f} ({record['threads']} CPU threads)",
    }


def model_card(measured: dict[Path, dict[str, float]], per_task: int) -> str:
    """The page for the model folders in `measured`, each with its accuracy per task (0 to 1)."""
    names = [folder.name for folder in measured]
    accuracies = list(measured.values())
    rows = [[task, *(f"{accuracy[task]:.1%}" for accuracy in accuracies)] for task in accuracies[0]]
    rows.append(["**mean**", *(f"**{sum(a.values()) / len(a):.1%}**" for a in accuracies)])
    described = [describe(folder) for folder in measured]
    versions = json.loads((next(iter(measured)) / "training.json").read_text())
    return CARD.format(
        names=" and ".join(f"`{name}`" for name in names),
        per_task=per_task,
        accuracy=table(["task", *names], rows),
        models=table(["", *names], [[label, *(d[label] for d in described)] for label in described[0]]),
        **{name: versions[name] for name in ("python", "torch", "transformers")},
    )
