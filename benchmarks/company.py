"""Whether answers depend on what else runs: a model's requests in three orders, with engines of three sizes.

Usage: python -m benchmarks.company MODEL [DTYPE] [ROWS] [ENGINE]

MODEL is a folder of examples/models. Prints how many of the rows differ between any two of the nine runs.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from itertools import combinations
from typing import Any

from batchyard.endpoints import responses
from batchyard.endpoints.catalog import CHAT
from batchyard.models import ModelSpec
from inference.engine import Engine
from inference.engines import registry
from tests.support.stacks import ROOT

SIZES, ORDERS = (8, 64, 256), 3
MOST_TOKENS = 64


def bodies(model: str, rows: int) -> list[dict[str, Any]]:
    """Return requests: half are tasks of the models, a quarter random words, a quarter random words with a seed."""
    lines = (ROOT / "examples/requests.jsonl").read_text().splitlines()
    words = " ".join(json.loads(line)["body"]["messages"][0]["content"] for line in lines).split()
    made = []
    for number in range(rows):
        chance = random.Random(number)
        body = json.loads(lines[number % len(lines)])["body"]
        if number % 2:
            text = " ".join(chance.choices(words, k=chance.randint(2, 60)))
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": MOST_TOKENS, "ignore_eos": True}
            body |= {"temperature": 1, "seed": number} if number % 4 == 3 else {"temperature": 0}
        body.pop("metadata", None)
        made.append(body | {"model": model, "logprobs": True, "top_logprobs": 5})
    return made


async def asked(engine: Engine, requests: list[dict[str, Any]], order: int) -> list[Any]:
    """Return text, log-probabilities and tokens of each answer, in the order of the requests."""
    room, numbers = asyncio.Semaphore(2 * engine.capacity), list(range(len(requests)))
    random.Random(order).shuffle(numbers)
    answers: dict[int, Any] = {}

    async def one(number: int) -> None:
        async with room:
            answer = await engine.answer(CHAT.path, dict(requests[number]))
        (output,) = responses.outputs(answer.body) or [None]
        if output is None:
            raise SystemExit(f"request {number} has no answer: {answer.error or answer.body}")
        values = [token["logprob"] for token in output.logprobs["content"]]
        answers[number] = [output.text, output.finish_reason, values]

    await asyncio.gather(*map(one, numbers))
    return [answers[number] for number in range(len(requests))]


async def run(model: str, dtype: str, rows: int, name: str, size: int) -> None:
    """Print the answers of one engine, a line for each order."""
    of_vllm = {"max_num_seqs": size, "kv_cache_memory_bytes": 2**29, "max_model_len": 512}
    arguments = {"dtype": dtype, **(of_vllm if name == "vllm" else {"batch_size": size})}
    spec = ModelSpec(name=model, engine=name, source=str(ROOT / "examples/models" / model), engine_args=arguments)
    engine = registry.engine_class(name)(spec, 600)
    await engine.start()
    for order in range(ORDERS):
        print("answers:", json.dumps(await asked(engine, bodies(model, rows), order)), flush=True)
    await engine.stop()


def main(model: str, dtype: str = "float32", rows: str = "2000", name: str = "vllm") -> None:
    runs: list[list[Any]] = []
    for size in SIZES:
        command = [sys.executable, "-m", "benchmarks.company", model, dtype, rows, name, str(size)]
        printed = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [line for line in printed.stdout.splitlines() if line.startswith("answers: ")]
        if len(lines) != ORDERS:
            raise SystemExit(f"{size} at once: {printed.stderr[-2000:]}")
        runs += [json.loads(line.removeprefix("answers: ")) for line in lines]
    texts, logprobs, gaps = set[int](), set[int](), [0.0]
    for one, other in combinations(runs, 2):
        for number, (before, after) in enumerate(zip(one, other, strict=True)):
            if before[:2] != after[:2]:
                texts.add(number)
            elif before[2] != after[2]:
                logprobs.add(number)
                gaps += [abs(first - second) for first, second in zip(before[2], after[2], strict=True)]
    report = {
        **{"model": model, "engine": name, "dtype": dtype, "rows": int(rows), "runs": len(runs)},
        "pairs": len(runs) * (len(runs) - 1) // 2,
        "tokens_a_run": sum(len(values) for *_, values in runs[0]),
        "answers_that_differ": len(texts),
        "log_probabilities_that_differ_in_equal_answers": len(logprobs - texts),
        "largest_gap": max(gaps),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    if len(sys.argv) > 5:
        asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5])))
    else:
        main(*sys.argv[1:])
