"""The workloads of the inference benchmark: requests of several kinds, each with its model and settings."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import harness
import models
import public
from harness import Body, chat, words

from inference.engines.vllm.arguments import CPU_DEFAULTS, ONE_PROCESS, few_cpus

EMBEDDINGS = "/v1/embeddings"
OURS = "batchyard"
PUBLIC = (OURS, "vllm-serve", "run-batch", "llm-chat")
SMALL_CACHE = 6912
"""Tokens: less than what prompts share together, as with long prompts on a GPU."""


def unshared(number: int, max_tokens: int, prefix: str = "") -> list[Body]:
    return [chat(f"{prefix}{index}: {words(12, index)}", max_tokens) for index in range(number)]


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

    `cache_tokens` is the capacity of the engine's KV cache. `share_prefixes` is true if prompts begin alike. `group` is
    the geometric mean that it counts in: shared, mixed or unshared prompts.
    """

    about: str
    size: str
    requests: Callable[[], list[Body]]
    ways: tuple[str, ...] = (OURS, "run-batch", "llm-chat", "ray-data-llm")
    cache_tokens: int = 100_000
    share_prefixes: bool = False
    endpoint: str = harness.CHAT
    group: str | None = None
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
            **({"max_num_batched_tokens": 2048} if self.endpoint == harness.CHAT else {}),  # as this stack has it
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
        SMALL_CACHE,
        share_prefixes=True,
    ),
    "few-shot": Workload(
        "4 tasks with examples, mixed", "300M", few_shot, (OURS, "run-batch"), SMALL_CACHE, share_prefixes=True
    ),
    "duplicates": Workload("half are the same as another", "300M", duplicates, (OURS, "run-batch")),
    "mixed": Workload("prompts and answers of all lengths", "300M", mixed, (OURS, "run-batch", "llm-chat")),
    "tail": Workload(
        "answers of lognormal length, cv 1.5, of 45 tokens on average",
        "1M",
        lambda: public.tail(6000, 1.5),
        (OURS, "llm-chat", "run-batch", "vllm-serve"),
    ),
    "tail-unknown": Workload(
        "answers that end where nobody can know, at 400 tokens at the latest",
        "1M",
        lambda: public.tail_unknown(6000, range(len(models.SPECIAL), models.VOCABULARY)),
        (OURS, "llm-chat"),
    ),
    "synthetic-sessions": Workload(
        "made to the shape of Mooncake's trace synthetic",
        "300M",
        public.synthetic_sessions,
        PUBLIC,
        SMALL_CACHE,
        group="shared",
    ),
    "few-shot-evaluation": Workload(
        "made to the shape of BIG-Bench Hard, 3 shots",
        "300M",
        public.few_shot_evaluation,
        (*PUBLIC, "ray-data-llm"),
        SMALL_CACHE,
        group="shared",
    ),
    "table-labels": Workload(
        "made to the shape of Banking77: a label for each row of a table",
        "300M",
        public.table_labels,
        (*PUBLIC, "ray-data-llm"),
        SMALL_CACHE,
        group="shared",
    ),
    "conversations": Workload(
        "made to the shape of Mooncake's trace conversation",
        "300M",
        public.conversations,
        PUBLIC,
        SMALL_CACHE,
        group="mixed",
    ),
    "samples": Workload(
        "made to the shape of GSM8K, 8 samples of each answer", "300M", public.samples, PUBLIC, group="mixed"
    ),
    "single-turn-chat": Workload(
        "made to the shape of LMSYS-Chat-1M",
        "300M",
        public.single_turn_chat,
        (*PUBLIC, "ray-data-llm"),
        group="unshared",
    ),
    "code-completion": Workload(
        "made to the shape of HumanEval", "300M", public.code_completion, (*PUBLIC, "ray-data-llm"), group="unshared"
    ),
    "embeddings": Workload(
        "4,000 embeddings, 1 M parameters",
        "1M",
        lambda: [{"input": f"{index}: {words(30, index)}"} for index in range(4000)],
        (OURS, "run-batch"),
        endpoint=EMBEDDINGS,
    ),
}
