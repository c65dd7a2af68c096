"""Guard `repetition` on real vLLM: answers found, tokens saved, sound answers harmed, tokens per CPU second.

Usage: python -m benchmarks.guard [ROUNDS]
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import psutil

from batchyard.endpoints import responses
from batchyard.endpoints.catalog import CHAT
from batchyard.endpoints.guards import guarded
from batchyard.models import ModelSpec
from inference.engines.vllm.engine import VLLM
from tests.support.stacks import ROOT

REQUESTS, LOOPING, LONG, TOKENS = 2_000, 100, 32, 400
STEERED = {"logit_bias": {"1": -100}, "return_token_ids": True}
"""Takes the end of an answer away. `mini` decodes on, but few such answers repeat themselves exactly for long."""
WORDS = 1, 60
"""Fewest and most words of the text that a grammar makes an answer repeat."""


def bodies() -> list[dict[str, Any]]:
    """Return the questions of examples/requests.jsonl, 100 that loop, and long random answers among them."""
    lines = (ROOT / "examples/requests.jsonl").read_text().splitlines()
    chance, bodies = random.Random(1), []
    words = re.findall("[a-z]+", " ".join(json.loads(line)["body"]["messages"][0]["content"] for line in lines))
    for number in range(REQUESTS):
        body = json.loads(lines[number % len(lines)])["body"] | {"model": "mini", "temperature": 0}
        body["max_tokens"] = TOKENS
        if number < LOOPING:
            count = round(math.exp(chance.uniform(*map(math.log, WORDS))))
            start = chance.randrange(len(words) - count)
            text = " ".join(words[start : start + count])
            body |= STEERED | {"structured_outputs": {"regex": f"({text} )+"}}
        elif number < LOOPING + LONG:
            body |= {"ignore_eos": True, "temperature": 2.0, "seed": number}
        bodies.append(body)
    chance.shuffle(bodies)
    return bodies


def period(tokens: Sequence[int]) -> int | None:
    """Return the length of the shortest pattern that an answer ends with three times; None without one."""
    return next(
        (size for size in range(1, len(tokens) // 3 + 1) if tokens[-2 * size :] == tokens[-3 * size : -size]), None
    )


def cpu_seconds() -> float:
    """Return the CPU time of this process and the engine's, which other work on the machine does not change."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


async def measured(engine: VLLM, requests: list[dict[str, Any]]) -> tuple[float, list[responses.Output], int]:
    """Return the CPU seconds that requests take, with their answers and tokens."""
    began = cpu_seconds()
    answers = await asyncio.gather(*(engine.answer(CHAT.path, body) for body in requests))
    seconds = cpu_seconds() - began
    bodies = [answer.body or {} for answer in answers]
    tokens = sum(responses.usage(body).output_tokens or 0 for body in bodies)
    return seconds, [responses.output(body) for body in bodies], tokens


async def main(rounds: int) -> None:
    arguments = {"dtype": "float32", "max_model_len": 512, "kv_cache_memory_bytes": 2**29, "max_num_seqs": 64}
    arguments["enable_chunked_prefill"] = False  # vLLM's generators on the CPU cannot go back
    engine = VLLM(
        ModelSpec(name="mini", engine="vllm", source=str(ROOT / "examples/models/mini"), engine_args=arguments), 600
    )
    await engine.start()
    requests = bodies()
    sound = [body for body in requests if "logit_bias" not in body]
    await measured(engine, sound)
    ratios: dict[str, list[float]] = {"all sound answers": [], f"answers of {TOKENS} tokens": []}
    for _ in range(rounds):
        for name, asked in zip(ratios, (sound, [body for body in sound if body.get("ignore_eos")]), strict=True):
            off, _, _ = await measured(engine, asked)
            on, _, tokens = await measured(engine, list(map(guarded, asked)))
            ratios[name].append(off / on)
            print(f"{name}: {tokens} tokens, CPU seconds: {off:.1f} off, {on:.1f} on", flush=True)
    _, before, used = await measured(engine, requests)
    _, after, kept = await measured(engine, list(map(guarded, requests)))
    loops = [period(answer.token_ids or ()) for answer in before]
    looping = [body.get("logit_bias") is not None for body in requests]
    ended = [answer.finish_reason == responses.REPETITION for answer in after]
    changed = [one.text != other.text for one, other in zip(before, after, strict=True)]
    report = {
        "answers": len(requests),
        "steered": sum(looping),
        "loops": {
            f"pattern of {low} to {high} tokens": {
                "answers": sum(low <= (size or 0) <= high for size in loops),
                "found": sum(end for end, size in zip(ended, loops, strict=True) if low <= (size or 0) <= high),
            }
            for low, high in ((1, 16), (17, 64), (65, TOKENS))
        },
        "sound_ended": sum(end for end, steered in zip(ended, looping, strict=True) if not steered),
        "sound_changed": sum(change for change, steered in zip(changed, looping, strict=True) if not steered),
        "tokens_without": used,
        "tokens_with": kept,
        "throughput_on_of_off": {name: statistics.median(values) for name, values in ratios.items()},
    }
    print(json.dumps(report, indent=1))
    await engine.stop()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
