"""Prefix affinity of engine `openai`, simulated: prompt tokens that eight endpoints compute, over the distinct ones.

Endpoints, the choice among them and the key of a prefix are the engine's own code (inference.engines.openai.endpoints,
inference.requests.ordering). The servers behind them are simulated: continuous batching and a prefix cache that forgets
the least recently used block. Requests come in the order in which the pipeline sends them, sorted by prefix, and a
number of them is kept in flight. Nothing here is a speed of any server. Writes `benchmarks/results/affinity.json` and
`affinity.md`.

    python benchmarks/affinity.py
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import harness
from harness import Body, chat, words

from inference.engines.openai.endpoints import RemoteEndpoint, choose
from inference.requests.ordering import order_key, prefix_key

ENDPOINTS = 8
BLOCK_TOKENS = 16
"""A block of the cache is a piece of the order key: 64 bytes of JSON."""
CACHE_BLOCKS = 1000
RUNNING = 16
"""Requests that a server runs at once."""
PREFILL_SECONDS = 0.001
STEP_SECONDS = 0.02


def documents(number: int = 24) -> list[Body]:
    """Documents of about 450 tokens with 8 questions each."""
    texts = [f"Document {index}. {words(300, index)}" for index in range(number)]
    return [chat(f"{text}\nQuestion {question}: {words(5, question)}?", 32) for text in texts for question in range(8)]


def sessions(number: int) -> list[Body]:
    """Conversations of 2 to 8 turns with one system prompt. A request holds all turns up to its own."""
    chance, bodies = random.Random(5), []
    for session in range(number):
        messages: list[Any] = [{"role": "system", "content": words(60, -1)}]
        for turn in range(chance.randint(2, 8)):
            messages.append({"role": "user", "content": f"{session} {turn} {words(chance.randint(20, 120), session)}"})
            bodies.append({"messages": list(messages), "max_tokens": chance.randint(16, 200)})
            messages.append({"role": "assistant", "content": words(chance.randint(20, 160), session + turn)})
    return bodies


def unshared() -> list[Body]:
    return [chat(f"{index}: {words(200, index)}", 16 + index % 185) for index in range(1000)]


def one_prefix() -> list[Body]:
    """Short questions to one long system prompt."""
    return [chat(f"{index}: {words(12, index)}", 16 + index % 85, words(300, 0)) for index in range(1000)]


WORKLOADS: dict[str, Callable[[], list[Body]]] = {
    "24 documents x 8 questions": documents,
    "200 documents x 8 questions": lambda: documents(200),
    "150 conversations": lambda: sessions(150),
    "one system prompt": one_prefix,
    "nothing shared": unshared,
}


@dataclass
class Request:
    """A request as a server sees it: the keys of its blocks, and the tokens of its answer."""

    blocks: list[int]
    answer: int
    prefix: bytes | None

    @classmethod
    def of(cls, body: Body) -> Request:
        key = order_key(harness.CHAT, body)
        blocks = [int.from_bytes(key[at : at + 4]) for at in range(0, len(key), 4)]
        return cls(blocks, body["max_tokens"], prefix_key(harness.CHAT, body))


@dataclass
class Server:
    """The server behind an endpoint."""

    running: int = 0
    computed: int = 0
    prefilled_at: float = 0.0
    waiting: deque[tuple[Request, float, int]] = field(default_factory=deque)
    cache: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def start(self, request: Request, now: float) -> float:
        """Start a request and return when it ends."""
        cached = len(list(itertools.takewhile(self.cache.__contains__, request.blocks)))
        for block in request.blocks:
            self.cache[block] = None
            self.cache.move_to_end(block)
        while len(self.cache) > CACHE_BLOCKS:
            self.cache.popitem(last=False)
        self.running += 1
        computed = len(request.blocks) - cached
        self.computed += computed
        self.prefilled_at = max(now, self.prefilled_at) + computed * BLOCK_TOKENS * PREFILL_SECONDS
        return self.prefilled_at + request.answer * STEP_SECONDS


def simulate(requests: list[Request], in_flight: int, *, affinity: bool) -> tuple[float, float]:
    """Answer the requests in their order; return the tokens computed over the distinct ones, and the seconds."""
    endpoints = [RemoteEndpoint(f"http://node{index}:8000/v1", in_flight, 0.0) for index in range(ENDPOINTS)]
    servers = {endpoint.url: Server() for endpoint in endpoints}
    for endpoint in endpoints:
        endpoint.probed(0.0)
    now, waiting, number = 0.0, deque(requests), itertools.count()
    ends: list[tuple[float, int, RemoteEndpoint, float, int]] = []

    def begin(endpoint: RemoteEndpoint, request: Request, began: float, beside: int) -> None:
        end = servers[endpoint.url].start(request, now)
        heapq.heappush(ends, (end, next(number), endpoint, began, beside))

    while waiting or ends:
        while waiting and sum(endpoint.in_flight for endpoint in endpoints) < in_flight:
            endpoint = choose(endpoints, now, prefix=waiting[0].prefix if affinity else None)
            if endpoint is None:
                break
            endpoint.in_flight += 1
            server = servers[endpoint.url]
            if server.running < RUNNING:
                begin(endpoint, waiting.popleft(), now, endpoint.in_flight)
            else:
                server.waiting.append((waiting.popleft(), now, endpoint.in_flight))
        now, _, endpoint, began, beside = heapq.heappop(ends)
        endpoint.answered(now, began, beside)
        endpoint.in_flight -= 1
        server = servers[endpoint.url]
        server.running -= 1
        if server.waiting:
            begin(endpoint, *server.waiting.popleft())
    distinct = len({block for request in requests for block in request.blocks})
    return sum(server.computed for server in servers.values()) / distinct, now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[64, 128, 256])
    arguments = parser.parse_args()
    runs: list[dict[str, Any]] = []
    rows: list[list[object]] = []
    for name, bodies in WORKLOADS.items():
        requests = [Request.of(body) for body in sorted(bodies(), key=lambda body: order_key(harness.CHAT, body))]
        for in_flight in arguments.in_flight:
            load, load_seconds = simulate(requests, in_flight, affinity=False)
            prefix, prefix_seconds = simulate(requests, in_flight, affinity=True)
            runs.append({"workload": name, "requests": len(requests), "in_flight": in_flight})
            runs[-1] |= {"least_wait": [load, load_seconds], "affinity": [prefix, prefix_seconds]}
            rows.append([name, f"{len(requests):,}", in_flight, f"{load:.2f}", f"{prefix:.2f}"])
            rows[-1].append(f"{load_seconds / prefix_seconds:.2f}x")
    columns = ["workload", "requests", "in flight", "least wait", "prefix affinity", "rows per second of least wait's"]
    harness.write(
        "affinity",
        {"machine": harness.machine(), "runs": runs},
        f"Simulated: {ENDPOINTS} endpoints, each with a prefix cache of {CACHE_BLOCKS * BLOCK_TOKENS:,} tokens and "
        f"{RUNNING} requests running at once. Prompt tokens computed, over the distinct ones (each prefix once), by "
        "the choice of an endpoint:",
        harness.table(columns, rows),
    )


if __name__ == "__main__":
    main()
