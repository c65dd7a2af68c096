"""Trains the example encoders, small BERTs: vectors of texts, scores of pairs, labels of reviews.

    python examples/models/encoders.py              # trains, measures and writes encoders.md
    python examples/models/encoders.py --evaluate   # only measures again

A few minutes on one CPU. The same seed gives the same weights on the same kind of processor with the same versions.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from problems import ASPECTS, NEGATIVE, NEUTRAL, POSITIVE, TASKS, draw, frame_texts, invented_word
from torch.nn import functional
from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizer

HERE = Path(__file__).parent
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LABELS = ("negative", "neutral", "positive")
CONTEXT = 128
FUNCTION_WORDS = "a an the is was are were of in on at to for and or it does did do when what where which how not"
CONTENT_WORDS = """
    answer apple bank battle bird boat book bread bridge bus car castle cat church city clock cloud coat coffee cold
    corn cup dark day desk dog door driver east engine evening farm field fire fish flower forest friend garden glass
    gold grass green ground hall hand harbour hat heavy hill horse hotel house ice island key king kitchen lake lamp
    large late leave leaves letter light line load machine map market meal milk mill model money moon morning mountain
    music new night noon north number ocean office old paper park passenger path piano picture plane plant platform
    queue rain rains red restaurant river road roof school sea seat send ship shop silver sky slow small snow soup south
    star start station stone storm street sugar summer sun table tall tea ticket time tower town track train tree
    tunnel valley village wagon wall warm water wheel white wind window winter wood work write yard year yellow young
"""
TERMS = (*CONTENT_WORDS.split(), *ASPECTS, *POSITIVE, *NEGATIVE, *NEUTRAL)

CARD = """\
# Model card: `embed`, `rerank` and `sentiment`

<!-- Written by encoders.py; change the text there. -->

Three encoders of our own, trained from nothing by `encoders.py` in this folder, so that vectors, rankings and labels
can be tried and tested where no weights can be downloaded. They are BERTs: vLLM and transformers load them by path.
The weights are stored in float16.

| model | architecture | what it does | right, held-out |
|---|---|---|---|
| `embed` | `BertModel`, mean of the tokens | vectors of length 1: texts of one task are near each other, \
and of reviews those of one sentiment and about one thing | {embed} |
| `rerank` | `BertForSequenceClassification`, 1 label | the share of a query's content words that a document has | \
{rerank} |
| `sentiment` | `BertForSequenceClassification`, 3 labels | the sentiment of a review, {labels}, with negations and \
contradictions | {sentiment} |

Right is, of `embed`, the nearest of 64 other texts if it is of the same task and sentiment; of `rerank`, the first of
8 documents if it has most of the query's words; of `sentiment`, a label. Each is measured on {count} texts or queries
that were in no training, in float32.

They know the words of `problems.py`, and `rerank` two hundred more. Any other word is spelled in letters, of which they
make little. They are for nothing else. Context {context} tokens, {parameters} parameters and {size} MB each.

Made with torch {torch}, transformers {transformers}, seed {seed}.
"""


@dataclass(frozen=True)
class Plan:
    """How one encoder is trained. `loss` takes the model, the tokenizer and a source of examples."""

    steps: int
    batch: int
    loss: Callable[[torch.nn.Module, BertTokenizer, random.Random, int], torch.Tensor]
    measure: Callable[[Path, int, random.Random], float]
    labels: tuple[str, ...] = ()


def make_tokenizer() -> BertTokenizer:
    """A WordPiece tokenizer with the words of the tasks; others are spelled."""
    words = {word for text in (*frame_texts(), FUNCTION_WORDS, *TERMS) for word in _words(text)}
    letters = [*string.ascii_lowercase, *string.digits, *string.punctuation]
    tokens = dict.fromkeys([*SPECIAL, *letters, *(f"##{letter}" for letter in letters), *sorted(words)])
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return BertTokenizer(vocab=vocabulary, model_max_length=CONTEXT)


def _words(text: str) -> list[str]:
    return "".join(letter if letter.isalpha() else " " for letter in text.lower()).split()


def new_model(tokenizer: BertTokenizer, labels: Sequence[str]) -> torch.nn.Module:
    """A BERT with random weights: with a head of that many labels, or without one."""
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=256,
        max_position_embeddings=CONTEXT,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.05,
        pad_token_id=tokenizer.pad_token_id,
    )
    if labels:
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: number for number, label in enumerate(labels)}
    model = BertForSequenceClassification(config) if labels else BertModel(config, add_pooling_layer=False)
    # Words look for themselves from the beginning; otherwise no training of minutes finds out that this helps.
    embeddings, attention = model.base_model.embeddings, model.base_model.encoder.layer[0].attention.self
    with torch.no_grad():
        embeddings.position_embeddings.weight *= 0.1
        embeddings.token_type_embeddings.weight *= 0.5
        torch.nn.init.orthogonal_(attention.query.weight)
        attention.key.weight.copy_(attention.query.weight)
    return model


def vectors(model: torch.nn.Module, tokenizer: BertTokenizer, texts: Sequence[str]) -> torch.Tensor:
    """Vectors of length 1 (texts, 128): the means of the last hidden states."""
    inputs = tokenizer(list(texts), padding=True, return_tensors="pt")
    states = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1)
    return functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


def meaning(rng: random.Random, split: str = "train") -> tuple[str, str, int, list[str]]:
    """A text with its task, its sentiment (-1, 0 or 1) and the things it is about."""
    if rng.random() < 0.2:  # a few words, as people search
        aspect, sentiment = rng.choice(("", *ASPECTS)), rng.choice((1, -1))
        adjective = rng.choice(POSITIVE if sentiment > 0 else NEGATIVE) if not aspect or rng.random() < 0.6 else ""
        return f"{adjective} {aspect}".strip(), "sentiment", sentiment if adjective else 0, [aspect] if aspect else []
    problem = draw(rng.choice(("sentiment", "sentiment", "sentiment", *TASKS)), split, rng)
    if problem.task != "sentiment":
        return problem.prompt, problem.task, 0, []
    sentiment = LABELS.index(json.loads(problem.answer)["sentiment"]) - 1
    text = problem.content if rng.random() < 0.8 else problem.prompt
    return text, problem.task, sentiment, [aspect for aspect in ASPECTS if aspect in _words(problem.content)]


def target(task: str, sentiment: int, about: Sequence[str]) -> list[float]:
    """What the text is, as a vector: its task, its sentiment, and the things it is about."""
    share = len(about) ** -0.5 if about else 0.0
    things = [share * (aspect in about) for aspect in ASPECTS]
    return [*(float(task == name) for name in TASKS), float(sentiment), *things]


def embed_loss(model: torch.nn.Module, tokenizer: BertTokenizer, rng: random.Random, batch: int) -> torch.Tensor:
    """How far the cosines of all pairs are from those of what the texts are."""
    texts, *meanings = zip(*(meaning(rng) for _ in range(batch)), strict=True)
    wanted = functional.normalize(torch.tensor([target(*one) for one in zip(*meanings, strict=True)]), dim=-1)
    made = vectors(model, tokenizer, texts)
    return functional.mse_loss(made @ made.T, wanted @ wanted.T)


def pair(rng: random.Random, overlap: int | None = None, query: Sequence[str] = ()) -> tuple[str, str, float]:
    """A query, a document and the share of the query's content words that the document has."""
    terms = list(query) or _terms(rng, rng.randint(1, 4))
    kept = rng.sample(terms, rng.randint(0, len(terms)) if overlap is None else overlap)
    others = [term for term in _terms(rng, rng.randint(1, 9)) if term not in terms]
    return _sentence(terms, rng), _sentence([*kept, *others], rng), len(kept) / len(terms)


def _terms(rng: random.Random, count: int) -> list[str]:
    return [*dict.fromkeys(rng.choice(TERMS) if rng.random() < 0.9 else invented_word(rng) for _ in range(count))]


def _sentence(terms: Sequence[str], rng: random.Random) -> str:
    words = [*terms, *rng.choices(FUNCTION_WORDS.split(), k=rng.randint(0, 2 + len(terms)))]
    rng.shuffle(words)
    return " ".join(words) + rng.choice((".", "?", ""))


def rerank_loss(model: torch.nn.Module, tokenizer: BertTokenizer, rng: random.Random, batch: int) -> torch.Tensor:
    queries, documents, shares = zip(*(pair(rng) for _ in range(batch)), strict=True)
    inputs = tokenizer(list(queries), list(documents), padding=True, return_tensors="pt")
    logits = model(**inputs).logits.squeeze(-1)
    return functional.binary_cross_entropy_with_logits(logits, torch.tensor(shares))


def review(rng: random.Random, split: str) -> tuple[str, int]:
    problem = draw("sentiment", split, rng)
    return problem.content, LABELS.index(json.loads(problem.answer)["sentiment"])


def sentiment_loss(model: torch.nn.Module, tokenizer: BertTokenizer, rng: random.Random, batch: int) -> torch.Tensor:
    texts, labels = zip(*(review(rng, "train") for _ in range(batch)), strict=True)
    inputs = tokenizer(list(texts), padding=True, return_tensors="pt")
    return functional.cross_entropy(model(**inputs).logits, torch.tensor(labels))


def measure_embed(folder: Path, count: int, rng: random.Random) -> float:
    """The share of texts whose nearest of 64 others is of their task, and of their sentiment if they are reviews."""
    model, tokenizer = BertModel.from_pretrained(folder, dtype=torch.float32), BertTokenizer.from_pretrained(folder)
    right = 0
    for _ in range(count):
        texts, tasks, sentiments, _ = zip(*(meaning(rng, "held_out") for _ in range(65)), strict=True)
        made = vectors(model, tokenizer, texts)
        nearest = 1 + int((made[1:] @ made[0]).argmax())
        right += (tasks[0], sentiments[0]) == (tasks[nearest], sentiments[nearest])
    return right / count


def measure_rerank(folder: Path, count: int, rng: random.Random) -> float:
    """The share of queries for which the one of 8 documents with most of their words has the highest score."""
    model = BertForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    tokenizer, right = BertTokenizer.from_pretrained(folder), 0
    for _ in range(count):
        terms = _terms(rng, 3)
        pairs = [pair(rng, max(0, len(terms) - place), terms) for place in (0, 1, 1, 2, 2, 3, 3, 3)]
        inputs = tokenizer([one[0] for one in pairs], [one[1] for one in pairs], padding=True, return_tensors="pt")
        right += int(model(**inputs).logits.squeeze(-1).argmax()) == 0
    return right / count


def measure_sentiment(folder: Path, count: int, rng: random.Random) -> float:
    model = BertForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    texts, labels = zip(*(review(rng, "held_out") for _ in range(count)), strict=True)
    inputs = BertTokenizer.from_pretrained(folder)(list(texts), padding=True, return_tensors="pt")
    return float((model(**inputs).logits.argmax(-1) == torch.tensor(labels)).float().mean())


PLANS = {
    "embed": Plan(900, 64, embed_loss, measure_embed),
    "rerank": Plan(1500, 64, rerank_loss, measure_rerank, labels=("relevant",)),
    "sentiment": Plan(400, 64, sentiment_loss, measure_sentiment, labels=LABELS),
}


def train(name: str, out: Path, seed: int, steps: int) -> None:
    """Trains one encoder and writes its folder `out/name`, with float16 weights."""
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    plan, rng, tokenizer = PLANS[name], random.Random(f"{name} {seed}"), make_tokenizer()
    model = new_model(tokenizer, plan.labels).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(steps):
        for group in optimizer.param_groups:  # warm up for 100 steps, then let the rate fall
            group["lr"] = 1.5e-3 * min((step + 1) / 100, (steps - step) / steps)
        loss = plan.loss(model, tokenizer, rng, plan.batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(f"{name} step {step + 1}/{steps} loss {loss.item():.4f}", flush=True)
    folder = out / name
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if not plan.labels:
        _write_pooling(folder)


def _write_pooling(folder: Path) -> None:
    """Say that a text's vector is the mean of its tokens', normalised, as sentence-transformers does."""
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules, indent=2) + "\n")
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": 128, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling, indent=2) + "\n")


def card(out: Path, count: int, seed: int) -> str:
    """The model card, with what is measured."""
    with torch.inference_mode():
        source = f"held out {seed}"
        shares = {name: plan.measure(out / name, count, random.Random(source)) for name, plan in PLANS.items()}
    print(shares)
    model = BertForSequenceClassification.from_pretrained(out / "rerank")
    size = sum(file.stat().st_size for file in (out / "rerank").rglob("*") if file.is_file())
    return CARD.format(
        **{name: f"{share:.1%}" for name, share in shares.items()},
        labels=", ".join(LABELS),
        context=CONTEXT,
        parameters=f"{model.num_parameters():,}",
        size=f"{size / 1e6:.2f}",
        count=f"{count:,}",
        torch=torch.__version__,
        transformers=transformers.__version__,
        seed=seed,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains what was asked for, measures all, and writes the card beside them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PLANS, help="train only this one")
    parser.add_argument("--steps", type=int, help="training steps instead of the planned number")
    parser.add_argument("--evaluate", action="store_true", help="train nothing, measure what lies there")
    parser.add_argument("--held-out", type=int, default=500, help="texts that are measured (default %(default)s)")
    parser.add_argument("--seed", type=int, default=7, help="seed of weights and data (default %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads; another number may change the last bits")
    parser.add_argument("--out", type=Path, default=HERE, help="where the model folders go (default: here)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    for name in () if options.evaluate else [options.only] if options.only else PLANS:
        train(name, options.out, options.seed, options.steps or PLANS[name].steps)
    if all((options.out / name).exists() for name in PLANS):
        (options.out / "encoders.md").write_text(card(options.out, options.held_out, options.seed))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
