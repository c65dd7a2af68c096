"""Other ways to answer a file of requests with vLLM, each in a process of its own that ends afterwards.

    python benchmarks/contenders.py run-batch|vllm-serve|llm-chat|ray-data-llm REQUESTS OUTPUT ARGUMENTS

ARGUMENTS is JSON: model, served_model_name and vLLM's engine arguments; the environment is what the stack gives its own
engines. Each writes its answers as lines `{custom_id, text, prompt_tokens, cached_tokens}`, and into OUTPUT.seconds the
seconds of answering without the engine's start: null if unknown.
"""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from batchyard.local import ports
from batchyard.models import ModelSpec
from inference.engines.vllm.arguments import set_environment

Answer = tuple[str, str, int, int]
SAMPLING = ("temperature", "max_tokens", "ignore_eos", "stop_token_ids", "n")


def read(path: Path) -> list[dict[str, Any]]:
    with path.open() as lines:  # `str.splitlines` would cut an answer at U+2028
        return [json.loads(line) for line in lines]


def write(path: Path, answers: list[Answer]) -> None:
    names = ("custom_id", "text", "prompt_tokens", "cached_tokens")
    path.write_text("".join(json.dumps(dict(zip(names, answer, strict=True))) + "\n" for answer in answers))


def text_of(body: dict[str, Any]) -> str:
    """The message's text, or the first numbers of an embedding."""
    if "choices" in body:
        return str(body["choices"][0]["message"]["content"])
    return json.dumps([round(number, 3) for number in body["data"][0]["embedding"][:8]])


def answers_of(lines: list[dict[str, Any]]) -> list[Answer]:
    """The answers in a batch's output file."""
    answers = []
    for line in lines:
        body = line["response"]["body"]
        if body is None or "usage" not in body:
            raise SystemExit(f"{line['custom_id']} has no answer: {line}")
        details = body["usage"].get("prompt_tokens_details") or {}
        answers.append(
            (line["custom_id"], text_of(body), body["usage"]["prompt_tokens"], details.get("cached_tokens") or 0)
        )
    return answers


def sampling_of(body: dict[str, Any]) -> dict[str, Any]:
    """The sampling parameters of a request, as vLLM's SamplingParams takes them."""
    return {name: body[name] for name in SAMPLING if name in body}


def flags(arguments: dict[str, Any]) -> list[str]:
    """Engine arguments as flags of vLLM's command line."""
    words = []
    for name, value in arguments.items():
        option = "--" + name.replace("_", "-")
        words += [option] if value is True else [option, str(value)]
    return words


def run_batch(requests: Path, output: Path, arguments: dict[str, Any]) -> float | None:
    """`vllm run-batch`, whose command line wants a distribution named vllm, so its module is run."""
    raw = output.with_suffix(".raw")
    extra = ["--enable-prompt-tokens-details", "--disable-log-stats"]
    sys.argv = ["run_batch", "-i", str(requests), "-o", str(raw), *flags(arguments), *extra]
    runpy.run_module("vllm.entrypoints.launchers.run_batch", run_name="__main__")
    write(output, answers_of(read(raw)))
    return None


def vllm_serve(requests: Path, output: Path, arguments: dict[str, Any]) -> float | None:
    """A resident `vllm serve`, and a client that keeps twice as many requests there as run at once."""
    port = str(ports.free())
    extra = ["--enable-prompt-tokens-details", "--disable-log-stats", "--disable-uvicorn-access-log"]
    command = [sys.executable, __file__, "--server", *flags(arguments), *extra, "--host", "127.0.0.1", "--port", port]
    with subprocess.Popen(command) as server:
        try:
            seconds, answers = asyncio.run(asked(f"http://127.0.0.1:{port}", read(requests), server, arguments))
        finally:
            server.terminate()
    write(output, answers)
    return seconds


async def asked(
    url: str, requests: list[dict[str, Any]], server: subprocess.Popen[bytes], arguments: dict[str, Any]
) -> tuple[float, list[Answer]]:
    """Wait for the server, warm it, and return the seconds of all requests and their answers."""
    in_flight = 2 * arguments["max_num_seqs"]
    lines: list[dict[str, Any]] = []
    connector, no_limit = aiohttp.TCPConnector(limit=in_flight), aiohttp.ClientTimeout(None)
    async with aiohttp.ClientSession(url, connector=connector, timeout=no_limit) as session:

        async def client(waiting: list[dict[str, Any]]) -> None:
            while waiting:
                request = waiting.pop()
                async with session.post(request["url"], json=request["body"]) as response:
                    response.raise_for_status()
                    lines.append({"custom_id": request["custom_id"], "response": {"body": await response.json()}})

        async def answer(requests: list[dict[str, Any]]) -> None:
            waiting = requests[::-1]
            await asyncio.gather(*(client(waiting) for _ in range(in_flight)))

        while not await healthy(session):
            if server.poll() is not None:
                raise SystemExit("vllm serve has ended")
            await asyncio.sleep(0.5)
        first = requests[0]
        warm = (
            {"messages": [{"role": "user", "content": "warm"}], "max_tokens": 8} if "messages" in first["body"] else {}
        )
        await answer([{**first, "body": {**first["body"], **warm}} for _ in range(in_flight)])
        lines.clear()
        started = time.monotonic()
        await answer(requests)
        return time.monotonic() - started, answers_of(lines)


async def healthy(session: aiohttp.ClientSession) -> bool:
    try:
        async with session.get("/health") as response:
            return response.ok
    except aiohttp.ClientConnectionError:
        return False


def llm_chat(requests: Path, output: Path, arguments: dict[str, Any]) -> float | None:
    """The raw engine: all requests at once, in the file's order."""
    from vllm import LLM, SamplingParams

    bodies = [request["body"] for request in read(requests)]
    ids = [request["custom_id"] for request in read(requests)]
    arguments = {name: value for name, value in arguments.items() if name != "served_model_name"}
    engine = LLM(**arguments, disable_log_stats=True)
    engine.chat([bodies[0]["messages"]], SamplingParams(max_tokens=1), use_tqdm=False)
    started = time.monotonic()
    sampling = [SamplingParams(**sampling_of(body)) for body in bodies]
    outputs = engine.chat([body["messages"] for body in bodies], sampling, use_tqdm=False)
    seconds = time.monotonic() - started
    answers = [(one.outputs[0].text, len(one.prompt_token_ids or ()), one.num_cached_tokens or 0) for one in outputs]
    write(output, [(custom_id, *answer) for custom_id, answer in zip(ids, answers, strict=True)])
    return seconds


def ray_data_llm(requests: Path, output: Path, arguments: dict[str, Any]) -> float | None:
    """A processor of `ray.data.llm`, as its documentation shows it."""
    import ray
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR", object_store_memory=2**28)
    arguments = {name: value for name, value in arguments.items() if name != "served_model_name"}
    config = vLLMEngineProcessorConfig(
        model_source=arguments.pop("model"),
        engine_kwargs=arguments,
        batch_size=64,
        max_concurrent_batches=8,
        concurrency=1,
        log_engine_metrics=False,
        placement_group_config={"bundles": [{"CPU": 1}]},
    )
    processor = build_processor(
        config,
        preprocess=lambda row: {
            "custom_id": row["custom_id"],
            "messages": json.loads(row["messages"]),
            "sampling_params": json.loads(row["sampling"]),
        },
        postprocess=lambda row: {
            "custom_id": row["custom_id"],
            "text": row["generated_text"],
            "tokens": row["num_input_tokens"],
        },
    )
    rows = [
        {
            "custom_id": request["custom_id"],
            "messages": json.dumps(request["body"]["messages"]),
            "sampling": json.dumps(sampling_of(request["body"])),
        }
        for request in read(requests)
    ]
    answers = processor(ray.data.from_items(rows)).take_all()
    write(output, [(answer["custom_id"], answer["text"], answer["tokens"], 0) for answer in answers])
    return None


WAYS: dict[str, Callable[[Path, Path, dict[str, Any]], float | None]] = {
    "run-batch": run_batch,
    "vllm-serve": vllm_serve,
    "llm-chat": llm_chat,
    "ray-data-llm": ray_data_llm,
}

if __name__ == "__main__" and sys.argv[1] == "--server":  # its command line wants a distribution named vllm
    del sys.argv[1]
    runpy.run_module("vllm.entrypoints.launchers.api_server.entry", run_name="__main__")
elif __name__ == "__main__":
    way, source, target, argument_text = sys.argv[1:]
    arguments = json.loads(argument_text)
    set_environment(ModelSpec(name=arguments["served_model_name"], engine="vllm", source=arguments["model"]))
    answering_seconds = WAYS[way](Path(source), Path(target), arguments)
    Path(f"{target}.seconds").write_text(json.dumps(answering_seconds))
