"""Prompt tokens that tables cost by the order of their columns, counted, and on vLLM; accuracy; time of planning.

The five tables are made, to the shape of those in "Optimizing LLM Queries in Relational Data Analytics Workloads"
(MLSys 2025): the numbers of rows and columns, which columns determine which, and the length of a row are those of the
public tables; values, distinct values and lengths of the columns are ours. A prompt is a question and all columns.
Counted is a cache of BLOCKS blocks of 64 bytes of the request, about 16 tokens, that forgets the least recently used;
a token is taken for 4 bytes. The bound: each different line of a column is computed once, each other one never.

    python benchmarks/columns.py [--rows 30000] [--no-model]

Writes `benchmarks/results/columns.json` and `columns.md`. The part on vLLM has a stack of its own, with model `mini`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import harness
import orjson

import batchyard
from batchyard.client import frames
from batchyard.client.api import ApiClient
from batchyard.client.asking import rows as values_of
from batchyard.tables.template import Template
from inference.requests.ordering import PIECE, order_key

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "examples/models"))
import problems  # noqa: E402  # of the demo models, which are no package

BLOCKS = 8_000
"""Of the counted cache: 128,000 tokens."""
TOKEN_BYTES = 4
QUESTION = "Answer with yes or no. Would you recommend this to somebody who asks for something like it?\n\n"
WAYS = {
    "file": "{{*{names}}}",
    "sorted": "{{*{names}}}",
    "one order": "{{*}}",
    "per row": "{{*:per-row}}",
}
MODELS = f"""
[models.mini]
engine = "vllm"
source = "{ROOT}/examples/models/mini"
[models.mini.engine_args]
dtype = "float32"
max_model_len = 1024
block_size = {{block}}
"""
BLOCK_TOKENS = 32
INFO = 160
"""Of the movies on vLLM: a character of made text is nearly a token of `mini`."""
REVIEWED = 500
Row = dict[str, str]


@dataclass(frozen=True)
class Column:
    """A column of made texts.

    Attributes:
        distinct: how many different cells there are; 0: as many as rows.
        size: characters of a cell.
        of: another column that determines this one.
        skew: exponent of the frequency of cells by rank; 0: all are equally frequent.
    """

    distinct: int
    size: int
    of: str | None = None
    skew: float = 0.0


@dataclass(frozen=True)
class Shape:
    """A table to make. `grouped`: rows of the same first determining column stand together in the file."""

    rows: int
    columns: dict[str, Column]
    grouped: str | None = None


MOVIES = Shape(
    15_000,
    {
        "rottentomatoeslink": Column(1_000, 28, skew=0.8),
        "reviewtype": Column(2, 6),
        "reviewcontent": Column(0, 130),
        "topcritic": Column(2, 5, skew=1.0),
        "movieinfo": Column(1_000, 420, "rottentomatoeslink"),
        "movietitle": Column(980, 18, "rottentomatoeslink"),
        "genres": Column(150, 28, "rottentomatoeslink", 1.0),
        "productioncompany": Column(300, 20, "rottentomatoeslink", 1.0),
    },
    grouped="rottentomatoeslink",
)
PRODUCTS = Shape(
    14_890,
    {
        "rating": Column(5, 3, skew=1.0),
        "review_title": Column(9_000, 24, skew=0.7),
        "text": Column(0, 260),
        "id": Column(0, 14),
        "parent_asin": Column(2_500, 10, skew=0.8),
        "verified_purchase": Column(2, 5, skew=3.0),
        "product_title": Column(2_500, 90, "parent_asin"),
        "description": Column(2_000, 600, "parent_asin"),
    },
)
BIRD = Shape(
    14_920,
    {
        "PostId": Column(3_000, 6, skew=0.6),
        "PostDate": Column(0, 19),
        "Text": Column(0, 170),
        "Body": Column(3_000, 2_050, "PostId"),
    },
)
PDMX = Shape(
    10_000,
    {
        "path": Column(0, 60),
        "metadata": Column(0, 60),
        **{f"is{name}": Column(2, 5, skew=3.0) for name in "abcdefghijklmnopqrst"},
        **{f"version{name}": Column(1, 8) for name in "abcde"},
        **{f"n{name}": Column(40 * 3**place, 3, skew=1.2) for place, name in enumerate("abcdef")},
        **{f"score{name}": Column(400, 5, skew=1.0) for name in "abcdefgh"},
        **{f"license{name}": Column(6, 24, skew=1.5) for name in "abc"},
        "genres": Column(60, 10, skew=1.2),
        "groups": Column(200, 10, skew=1.5),
        "tags": Column(1_500, 20, skew=1.2),
        "songname": Column(8_000, 22, skew=0.3),
        "title": Column(8_000, 22, "songname"),
        "subtitle": Column(1_500, 14, skew=1.6),
        "artistname": Column(3_000, 14, skew=0.9),
        "composername": Column(3_500, 16, skew=0.9),
        "publisher": Column(40, 10, skew=2.0),
        "complexity": Column(4, 1, skew=0.8),
        "ntracks": Column(20, 2, skew=1.5),
        "tracks": Column(600, 14, skew=1.3),
        "rating": Column(80, 4, skew=2.0),
    },
)
BEER = Shape(
    28_479,
    {
        "beer/beerId": Column(1_500, 5, skew=0.9),
        "beer/name": Column(1_480, 24, "beer/beerId"),
        "beer/style": Column(90, 18, "beer/beerId", 1.0),
        "review/appearance": Column(9, 3, skew=1.0),
        "review/overall": Column(9, 3, skew=1.0),
        "review/palate": Column(9, 3, skew=1.0),
        "review/profileName": Column(4_000, 10, skew=0.9),
        "review/taste": Column(9, 3, skew=1.0),
    },
    grouped="beer/beerId",
)
TABLES = {"movies": MOVIES, "products": PRODUCTS, "bird": BIRD, "pdmx": PDMX, "beer": BEER}


def made(shape: Shape, rows: int, seed: int = 1) -> list[Row]:
    """Make the rows of a table, or other number of them of its kind."""
    chance, factor = random.Random(seed), rows / shape.rows
    cells: dict[str, list[str]] = {}
    choice: dict[str, list[int]] = {}
    for name, column in shape.columns.items():
        distinct = (
            rows if column.distinct == 0 else max(1, round(column.distinct * (factor if column.distinct > 200 else 1)))
        )
        texts = [text(chance, column.size, number) for number in range(distinct)]
        weights = [1 / (rank + 1) ** column.skew for rank in range(distinct)]
        if column.distinct == 0:
            picks = list(range(rows))
        elif column.of is None:
            picks = chance.choices(range(distinct), weights, k=rows)
        else:
            keys = choice[column.of]
            known = max(keys) + 1
            # As many cells as keys are one for each; fewer are drawn.
            of_key = list(range(known)) if distinct >= known else chance.choices(range(distinct), weights, k=known)
            picks = [of_key[key] for key in keys]
        choice[name], cells[name] = picks, [texts[pick] for pick in picks]
    table = [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]
    return sorted(table, key=lambda row: row[shape.grouped]) if shape.grouped else table


def text(chance: random.Random, size: int, number: int) -> str:
    """Return a text of this size that holds the number where it has room: texts of one column differ."""
    mark = f"{number:x}"
    if size < len(mark) + 2:
        return mark.rjust(size, "0")
    letters = "".join(chance.choices("etaoinshrdlucmfgp   ", k=size - len(mark) - 1)).strip()
    return f"{letters} {mark}"


def bodies(template: Template, table: Iterable[Row]) -> Iterator[harness.Body]:
    for row in table:
        yield {"model": "m", "messages": [{"role": "user", "content": template.fill(row)}]}


def blocks_of(body: harness.Body) -> list[int]:
    """Return a hash for each block of a request, of the text up to its end."""
    content, blocks, key = orjson.dumps(body["messages"]), list[int](), 0
    for start in range(0, len(content), PIECE):
        blocks.append(key := hash((key, content[start : start + PIECE])))
    return blocks


def counted(requests: Iterable[list[int]]) -> tuple[int, int]:
    """Return the number of blocks of requests, and of those that the cache does not have."""
    cache: OrderedDict[int, None] = OrderedDict()
    total = computed = 0
    for blocks in requests:
        hits = len(list(itertools.takewhile(cache.__contains__, blocks)))
        total, computed = total + len(blocks), computed + len(blocks) - hits
        for block in reversed(blocks):  # the end of a request is forgotten before its beginning
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > BLOCKS:
            cache.popitem(last=False)
    return total, computed


def bound(table: Sequence[Row]) -> int:
    """Return the least bytes that any order computes: the different lines of all columns, and beginnings once.

    Lines have no line feeds within, so each different beginning of a line is a place of its own in any tree of prompts.
    """
    lines = sorted({f"{name}: {cell}" for row in table for name, cell in row.items()})
    shared = sum(common(*pair) for pair in itertools.pairwise(lines))
    return len(QUESTION) + sum(map(len, lines)) - shared


def common(left: str, right: str) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def count(name: str, shape: Shape) -> dict[str, Any]:
    """Count the tokens of a table in each way."""
    table = made(shape, shape.rows)
    names = json.dumps(list(shape.columns))
    result: dict[str, Any] = {"rows": len(table), "columns": len(shape.columns)}
    for way, placeholder in WAYS.items():
        template = Template(QUESTION + placeholder.format(names=names))
        began = time.process_time()
        template = template.ordered(table)
        seconds = time.process_time() - began
        requests = list(bodies(template, table))
        if way != "file":
            requests.sort(key=lambda body: order_key(harness.CHAT, body))
        total, computed = counted(map(blocks_of, requests))
        tokens = computed * PIECE / TOKEN_BYTES
        result["tokens"] = total * PIECE / TOKEN_BYTES
        result[way] = {
            "computed": tokens,
            "hit rate": 1 - computed / total,
            "seconds": seconds,
            "order": template.order,
        }
        print(f"{name}, {way}: {tokens:,.0f} of {result['tokens']:,.0f} tokens, ordered in {seconds:.2f} s", flush=True)
    result["bound"] = bound(table) / TOKEN_BYTES
    return result


def planning(rows: int) -> dict[str, dict[str, float]]:
    """Return the CPU seconds in which the columns of tables of so many rows are ordered, in each of both ways."""
    seconds: dict[str, dict[str, float]] = {}
    for name, shape in TABLES.items():
        table = frames.of(made(shape, rows))
        seconds[name] = {}
        for way in ("one order", "per row"):
            template = Template(WAYS[way].format())
            began = time.process_time()
            template.ordered(values_of(table, table.columns))
            seconds[name][way] = time.process_time() - began
    return seconds


def on_vllm(server: ApiClient, folder: Path, rows: int) -> list[dict[str, Any]]:
    """Count what vLLM computes of movies that fit into mini's context, and of a cache without end what it would."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(ROOT / "examples/models/mini")
    shape = replace(MOVIES, columns=MOVIES.columns | {"movieinfo": Column(1_000, INFO, "rottentomatoeslink")})
    table = made(shape, rows)
    names = json.dumps(list(shape.columns))
    source = folder / "movies.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in table))
    results = []
    for way in ("sorted", "one order", "per row"):
        # The question begins with the way, so no way finds what another has left in the cache.
        template = f"{way}: recommend this?\n" + WAYS[way].format(names=names)
        form = {"model": "mini", "template": template, "max_tokens": "1", "temperature": "0"}
        batch = harness.ended(server, server.start(source, form)["batch_id"])
        usage = batch["usage"]
        messages = [body["messages"] for body in bodies(Template(template).ordered(table), table)]
        texts = [tokenizer.apply_chat_template(one, tokenize=False, add_generation_prompt=True) for one in messages]
        prompts = sorted(tokenizer(texts, add_special_tokens=False)["input_ids"])
        shared = (common(*pair) // BLOCK_TOKENS * BLOCK_TOKENS for pair in itertools.pairwise(prompts))
        total = sum(map(len, prompts))
        cached = usage["input_tokens_details"]["cached_tokens"]
        results.append(
            {"way": way, "rows": rows, "tokens": usage["input_tokens"], "computed": usage["input_tokens"] - cached}
        )
        results[-1] |= {"counted": total - sum(shared), "counted tokens": total}
        print(results[-1], flush=True)
    return results


def accuracy(server: ApiClient) -> dict[str, Any]:
    """Ask `mini` for the sentiment of reviews in tables, by the file's order of columns and by the one chosen."""
    chance = random.Random(5)
    table, answers = [], []
    for number in range(REVIEWED):
        problem = problems.sentiment_problem(chance)
        table.append({"Review": problem.content, "Number": str(number % 50), "Task": "sentiment"})
        answers.append(problem.answer)
    names = json.dumps(list(table[0]))
    result: dict[str, Any] = {"rows": REVIEWED}
    rights = {}
    for way in ("sorted", "one order"):
        template = WAYS[way].format(names=names) + "\nSentiment:"
        replies = batchyard.map(
            table, template, model="mini", server=server, temperature=0, max_tokens=32, progress=False, again=True
        )
        rights[way] = [
            reply is not None and reply.strip() == answer for reply, answer in zip(replies, answers, strict=True)
        ]
        result[way] = [*interval(sum(rights[way]), REVIEWED)]
    result["order"] = Template("{*}").ordered(table).order
    both = list(zip(*rights.values(), strict=True))
    result["only right in the file's"] = both.count((True, False))
    result["only right in the one"] = both.count((False, True))
    return result


def interval(right: int, total: int) -> tuple[float, float, float]:
    """Return the share, and its 95 % interval by Wilson."""
    z, share = 1.96, right / total
    middle = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    half = z / (1 + z**2 / total) * math.sqrt(share * (1 - share) / total + z**2 / (4 * total**2))
    return share, middle - half, middle + half


def tables(report: dict[str, Any]) -> list[str]:
    """Return the tables and notes of a report."""
    rows: list[list[object]] = []
    for name, entry in report["tables"].items():
        rows.append([name, f"{entry['rows']:,}", entry["columns"], f"{entry['tokens'] / 1e6:.2f} M"])
        for way in WAYS:
            rows[-1].append(f"{entry[way]['computed'] / 1e6:.2f} M ({entry[way]['hit rate']:.0%})")
        rows[-1].append(f"{entry['bound'] / 1e6:.2f} M")
        rows[-1].append(f"{entry['sorted']['computed'] / entry['one order']['computed']:.2f}x")
    heads = ["table", "rows", "columns", "prompt tokens", "file's rows and columns", "rows sorted", "`{*}`"]
    texts = [
        "Made tables. Prompt tokens computed, and the hit rate of the cache, counted in blocks of 64 bytes:",
        harness.table([*heads, "`{*:per-row}`", "bound", "`{*}` over rows sorted"], rows),
        f"Seconds of CPU to order the columns of {report['planned rows']:,} rows:",
        harness.table(
            ["table", "`{*}` s", "`{*:per-row}` s"],
            [[name, *(f"{seconds:.2f}" for seconds in both.values())] for name, both in report["planning"].items()],
        ),
    ]
    if report.get("vllm"):
        columns = ["way", "rows", "prompt tokens", "computed by vLLM", "hit rate", "counted"]
        rows = []
        for one in report["vllm"]:
            rows.append([one["way"], f"{one['rows']:,}", f"{one['tokens']:,}", f"{one['computed']:,}"])
            rows[-1] += [f"{1 - one['computed'] / one['tokens']:.0%}", f"{one['counted']:,}"]
        heading = (
            f"Movies with {INFO} characters of movieinfo, so that they fit into the context of `mini`, on vLLM with "
            f"blocks of {BLOCK_TOKENS} tokens. Counted: a cache without end, rows sorted:"
        )
        texts += [heading, harness.table(columns, rows)]
        accurate = report["accuracy"]
        columns = ["order of the columns", "right", "95 % interval"]
        rows = [
            [label, f"{accurate[way][0]:.1%}", f"{accurate[way][1]:.1%} to {accurate[way][2]:.1%}"]
            for way, label in (("sorted", "the file's"), ("one order", ", ".join(accurate["order"])))
        ]
        texts += [f"Sentiment of {accurate['rows']} reviews by `mini`:", harness.table(columns, rows)]
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=30_000, help="of the tables whose planning is timed")
    parser.add_argument("--on-vllm", type=int, default=1_000, help="rows of table movies on vLLM")
    parser.add_argument("--no-model", action="store_true", help="only what is counted")
    arguments = parser.parse_args()
    report: dict[str, Any] = {"machine": harness.machine(), "planned rows": arguments.rows}
    report["planning"] = planning(arguments.rows)
    report["tables"] = {name: count(name, shape) for name, shape in TABLES.items()}
    if not arguments.no_model:
        with harness.stack(MODELS.format(block=BLOCK_TOKENS), {}) as (server, data):
            report["vllm"] = on_vllm(server, data.parent, arguments.on_vllm)
            report["accuracy"] = accuracy(server)
    harness.write("columns", report, *tables(report))


if __name__ == "__main__":
    main()
