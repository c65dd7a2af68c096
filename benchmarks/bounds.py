"""What attacks on a running stack cost another tenant: python benchmarks/bounds.py [--seconds 15] [--sockets 100].

Against the stack of BATCHYARD_URL (loopback only), which serves engine `echo` as model `echo`. Beside each attack
another tenant sends a batch of 20 lines, and live requests one after the other. BATCHYARD_API_KEY is an admin key, with
which it makes the keys of two projects; BATCHYARD_DATA is the stack's data folder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil

URL = os.environ.get("BATCHYARD_URL", "http://127.0.0.1:8000")
MODEL = "echo"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "three wagons"}]}
MOST_SOCKETS, MOST_SECONDS = 2000, 120


def batch(lines: int) -> dict[str, Any]:
    """Return the body of a batch of so many requests."""
    requests = [{"custom_id": f"r{number}", "body": CHAT} for number in range(lines)]
    return {"endpoint": "/v1/chat/completions", "completion_window": "24h", "requests": requests}


async def send(stack: AsyncExitStack, data: bytes) -> asyncio.StreamWriter:
    """Open a connection, and send this."""
    place = urlsplit(URL)
    _, writer = await asyncio.open_connection(place.hostname, place.port, limit=1024)
    stack.callback(writer.transport.abort)
    writer.write(data)
    return writer


def head(method: str, path: str, key: str | None = None, length: int | None = None) -> bytes:
    """Return the head of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: here", "Content-Type: application/x-www-form-urlencoded"]
    lines += [f"Authorization: Bearer {key}"] if key else []
    lines += [f"Content-Length: {length}"] if length is not None else []
    return "\r\n".join([*lines, "", ""]).encode()


def flood(data: Callable[[str], bytes]) -> Callable[[str, int], Any]:
    """Return an attack of connections that each send this much."""

    @asynccontextmanager
    async def attack(key: str, sockets: int) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            with suppress(OSError):
                for _ in range(sockets):
                    await send(stack, data(key))
            yield

    return attack


@asynccontextmanager
async def many(key: str, count: int, path: str, body: dict[str, Any]) -> AsyncIterator[None]:
    """Send so many requests at once, and wait for none."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers={"Authorization": f"Bearer {key}"}) as session:

        async def one() -> None:
            with suppress(aiohttp.ClientError):
                async with session.post(URL + path, json=body) as answer:
                    await answer.read()

        tasks = [asyncio.create_task(one()) for _ in range(count)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


STREAM = CHAT | {"stream": True, "service_tier": "flex"}
ATTACKS: dict[str, Callable[[str, int], Any]] = {
    "none": flood(lambda _: head("GET", "/healthz")),
    "silent sockets": flood(lambda _: b""),
    "half-sent headers": flood(lambda _: b"GET /v1/models HTTP/1.1\r\nHost"),
    "half-sent sign-ins": flood(lambda _: head("POST", "/sign-in", length=100_000) + b"key=x"),
    "half-sent uploads": flood(lambda key: head("POST", "/v1/files", key, 50 * 2**20) + bytes(2**20)),
    "slow readers": flood(lambda key: head("GET", "/openapi.json", key) * 20),
    "half-sent live bodies": flood(lambda key: head("POST", "/v1/chat/completions", key, 15 * 2**20) + bytes(2**19)),
    "tiny batches": lambda key, count: many(key, count, "/v1/batches", batch(1)),
    "live streams": lambda key, count: many(key, count, "/v1/chat/completions", STREAM),
}


async def tenant(key: str, seconds: float) -> tuple[float | None, list[float], int]:
    """Return the seconds of a batch of 20 lines, those of live requests beside it, and how many of these failed."""
    headers = {"Authorization": f"Bearer {key}"}
    timeout = aiohttp.ClientTimeout(total=30)
    waits, failures, done = [], 0, None
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        began = time.monotonic()
        created: dict[str, Any] = {}
        while time.monotonic() - began < seconds:
            asked = time.monotonic()
            try:
                if not created:
                    async with session.post(f"{URL}/v1/batches", json=batch(20)) as answer:
                        created = await answer.json() if answer.status == 200 else {}
                async with session.post(f"{URL}/v1/chat/completions", json=CHAT) as answer:
                    await answer.read()
                    failures += answer.status != 200
                waits.append(time.monotonic() - asked)
                if created and done is None:
                    async with session.get(f"{URL}/v1/batches/{created['id']}") as answer:
                        if (await answer.json())["status"] == "completed":
                            done = time.monotonic() - began
            except (aiohttp.ClientError, TimeoutError):
                failures += 1
            await asyncio.sleep(0.05)
    return done, waits, failures


def memory() -> dict[str, int]:
    """Return the MiB of gateway and web app, which the folder of BATCHYARD_DATA belongs to."""
    sizes = {}
    for name in ("gateway", "web"):
        process = psutil.Process(int(Path(os.environ["BATCHYARD_DATA"], "run", f"{name}.pid").read_text()))
        processes = [process, *process.children(recursive=True)]
        sizes[name] = sum(one.memory_info().rss for one in processes) // 2**20
    return sizes


async def main() -> None:
    """Run each attack in turn, and print a line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--sockets", type=int, default=100)
    options = parser.parse_args()
    if urlsplit(URL).hostname not in ("127.0.0.1", "localhost", "::1"):
        parser.error("it attacks a stack on this machine only")
    seconds, sockets = min(options.seconds, MOST_SECONDS), min(options.sockets, MOST_SOCKETS)
    keys = {}
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {os.environ['BATCHYARD_API_KEY']}"}) as session:
        for project in ("attacker", "tenant"):
            async with session.post(f"{URL}/v1/keys", json={"project": project}) as answer:
                keys[project] = (await answer.json())["key"]
    for name, attack in ATTACKS.items():
        before = memory()
        async with attack(keys["attacker"], sockets if name != "none" else 0):
            done, waits, failures = await tenant(keys["tenant"], seconds)
            after = memory()
        live = sorted(waits) or [float("nan")]
        found = {
            "attack": name,
            "seconds": seconds,
            "batch of 20": done and round(done, 2),
            "live median": round(statistics.median(live), 4),
            "live p99": round(live[int(len(live) * 0.99)], 4),
            "live requests": len(waits),
            "failed": failures,
            "MiB more": {part: size - before.get(part, 0) for part, size in after.items()},
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
