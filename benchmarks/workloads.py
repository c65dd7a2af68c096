"""The workloads of the inference benchmark: requests of several kinds, each with its model and settings."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import harness
import models
from harness import Body

from inference.engines.vllm.arguments import CPU_DEFAULTS, ONE_PROCESS
from inference.engines.vllm.environment import few_cpus

WORDS = ("wagon", "yard", "train", "load", "track", "switch", "signal", "cargo", "night", "depot", "rail", "crew")
EMBEDDINGS = "/v1/embeddings"
OURS = "batchyard"


def words(number: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=number))


def chat(content: str, max_tokens: int, system: str | None = None) -> Body:
    messages = [{"role": "user", "content": content}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}


def unshared(number: int, max_tokens: int) -> list[Body]:
    return [chat(f"{index}: {words(12, index)}", max_tokens) for index in range(number)]


def documents() -> list[Body]:
    """24 documents of about 300 tokens with 8 questions each: the first question on each, then the second, …"""
    texts = [f"Document {index}. {words(150, index)}" for index in range(24)]
    return [chat(f"{text}\nQuestion {question}: {words(5, question)}?", 8) for question in range(8) for text in texts]


def few_shot() -> list[Body]:
    """Four tasks with examples of about 500 tokens each, their requests mixed."""
    systems = [f"Task {task}. {words(250, task)}" for task in range(4)]
    return [chat(f"{index}: {words(8, index)}", 8, systems[index % 4]) for index in range(240)]


def duplicates() -> list[Body]:
    """150 requests, each twice."""
    bodies = unshared(150, 16) * 2
    random.Random(3).shuffle(bodies)
    return bodies


def mixed() -> list[Body]:
    """Prompts of 10 to 400 words, answers of 2 to 128 tokens, in no order."""
    chance = random.Random(4)
    return [
        chat(f"{index}: {words(chance.choice((10, 40, 150, 400)), index)}", chance.choice((2, 8, 32, 128)))
        for index in range(160)
    ]


@dataclass(frozen=True)
class Workload:
    """Requests for one model, and the ways to answer them.

    `cache_tokens` is the capacity of the engine's KV cache. `share_prefixes` is true if prompts begin alike.
    """

    about: str
    size: str
    requests: Callable[[], list[Body]]
    ways: tuple[str, ...] = (OURS, "run-batch", "llm-chat", "ray-data-llm")
    cache_tokens: int = 100_000
    share_prefixes: bool = False
    endpoint: str = harness.CHAT
    rounds: int | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """vLLM's arguments, the same for all ways."""
        size = models.SIZES[self.size]
        return {
            **CPU_DEFAULTS,
            "dtype": "float32",
            "max_model_len": size.context if self.size != "1M" else 512,
            "max_num_seqs": 128,
            "kv_cache_memory_bytes": size.cache_bytes(self.cache_tokens),
            **({"distributed_executor_backend": ONE_PROCESS} if few_cpus() else {}),
        }


WORKLOADS = {
    "overhead": Workload("20,000 short requests to 1 M parameters: all overhead", "1M", lambda: unshared(20_000, 32)),
    "thousand": Workload(
        "1,000 short requests to 1 M parameters", "1M", lambda: unshared(1000, 32), (OURS, "run-batch")
    ),
    "real": Workload(
        "1,800 requests that share nothing, minutes of work", "300M", lambda: unshared(1800, 32), (OURS, "llm-chat")
    ),
    "documents": Workload(
        "24 documents x 8 questions, cache smaller than the documents",
        "300M",
        documents,
        (OURS, "run-batch", "llm-chat"),
        6912,
        share_prefixes=True,
    ),
    "few-shot": Workload(
        "4 tasks with examples, mixed", "300M", few_shot, (OURS, "run-batch"), 6912, share_prefixes=True
    ),
    "duplicates": Workload("half are the same as another", "300M", duplicates, (OURS, "run-batch")),
    "mixed": Workload("prompts and answers of all lengths", "300M", mixed, (OURS, "run-batch", "llm-chat")),
    "embeddings": Workload(
        "4,000 embeddings, 1 M parameters",
        "1M",
        lambda: [{"input": f"{index}: {words(30, index)}"} for index in range(4000)],
        (OURS, "run-batch"),
        endpoint=EMBEDDINGS,
    ),
}
