"""What attacks on a running stack cost another tenant: python benchmarks/bounds.py [--seconds 15] [--sockets 100].

Against the stack of BATCHYARD_URL (loopback only), which serves engine `echo` as models `echo` and, with a latency of a
minute, `slow`. Before and beside each attack another tenant sends batches of 20 lines, and live streams, one after the
other. Printed are its times alone and beside the attack, and their quotient. BATCHYARD_API_KEY is an admin key, with
which it makes the keys of two projects; BATCHYARD_DATA is the stack's data folder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
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
IDLE = CHAT | {"stream": True, "model": "slow"}
ATTACKS: dict[str, Callable[[str, int], Any]] = {
    "silent sockets": flood(lambda _: b""),
    "half-sent headers": flood(lambda _: b"GET /v1/models HTTP/1.1\r\nHost"),
    "half-sent sign-ins": flood(lambda _: head("POST", "/sign-in", length=100_000) + b"key=x"),
    "half-sent uploads": flood(lambda key: head("POST", "/v1/files", key, 50 * 2**20) + bytes(2**20)),
    "slow readers": flood(lambda key: head("GET", "/openapi.json", key) * 20),
    "half-sent live bodies": flood(lambda key: head("POST", "/v1/chat/completions", key, 15 * 2**20) + bytes(2**19)),
    "tiny batches": lambda key, count: many(key, count, "/v1/batches", batch(1)),
    "live streams": lambda key, count: many(key, count, "/v1/chat/completions", STREAM),
    "idle streams": lambda key, count: many(key, count, "/v1/chat/completions", IDLE),
}


class Measured(NamedTuple):
    """Seconds of batches of 20 lines, and until live streams began, one after the other; how many requests failed."""

    batches: list[float]
    live: list[float]
    failed: int


async def tenant(key: str, seconds: float) -> Measured:
    """Return what another tenant gets. A batch that has not ended counts with what it took so far."""
    found, ends = Measured([], [], 0), time.monotonic() + seconds
    timeout = aiohttp.ClientTimeout(total=30)
    failures = 0

    async def timed(call: Callable[[], Awaitable[bool]], to: list[float], pause: float) -> None:
        nonlocal failures
        while (began := time.monotonic()) < ends:
            try:
                failures += not await call()
            except (aiohttp.ClientError, TimeoutError):
                failures += 1
            to.append(time.monotonic() - began)
            await asyncio.sleep(pause)

    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}, timeout=timeout) as session:

        async def live() -> bool:
            async with session.post(f"{URL}/v1/chat/completions", json=CHAT | {"stream": True}) as answer:
                await answer.content.readline()
                return answer.status == 200

        async def one_batch() -> bool:
            async with session.post(f"{URL}/v1/batches", json=batch(20)) as answer:
                created = await answer.json()
            while answer.status == 200 and time.monotonic() < ends + seconds:
                async with session.get(f"{URL}/v1/batches/{created['id']}") as answer:
                    if (await answer.json())["status"] == "completed":
                        return True
                await asyncio.sleep(0.05)
            return False

        await asyncio.gather(timed(live, found.live, 0.05), timed(one_batch, found.batches, 0.2))
    return found._replace(failed=failures)


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
    parser.add_argument("--alone", type=float, default=10, help="seconds before each attack, without it")
    parser.add_argument("--sockets", type=int, default=100)
    parser.add_argument("--attacks", nargs="*", choices=ATTACKS)
    options = parser.parse_args()
    if urlsplit(URL).hostname not in ("127.0.0.1", "localhost", "::1"):
        parser.error("it attacks a stack on this machine only")
    seconds, sockets = min(options.seconds, MOST_SECONDS), min(options.sockets, MOST_SOCKETS)
    keys = {}
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {os.environ['BATCHYARD_API_KEY']}"}) as session:
        for project in ("attacker", "tenant"):
            async with session.post(f"{URL}/v1/keys", json={"project": project}) as answer:
                keys[project] = (await answer.json())["key"]
    for name in options.attacks or ATTACKS:
        alone, before = await tenant(keys["tenant"], options.alone), memory()
        async with ATTACKS[name](keys["attacker"], sockets):
            beside = await tenant(keys["tenant"], seconds)
            after = memory()
        found: dict[str, Any] = {"attack": name, "seconds": seconds, "sockets": sockets}
        for what, quantile in (("batches", 0.5), ("live", 0.5), ("live", 0.99)):
            values = [sorted(getattr(one, what)) for one in (alone, beside)]
            times = [one[int(len(one) * quantile)] for one in values]
            found[f"{what} p{quantile * 100:.0f}"] = [round(one, 4) for one in times] + [round(times[1] / times[0], 2)]
        found |= {"batches": len(beside.batches), "live": len(beside.live), "failed": [alone.failed, beside.failed]}
        found["MiB more"] = {part: size - before.get(part, 0) for part, size in after.items()}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
