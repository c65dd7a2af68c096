"""Live requests beside batches on the same engines: what each does to the other.

Live requests come at random (Poisson), many and few a second in turn, while three batches run: the shape of a public
scenario of the llm-d project. Four runs, each on a stack of its own: live alone, batches alone, both without protection
(live requests of tier `flex`, which take their turn among the batches'), both as shipped. Where prompts cost time two
more: limits of batch requests in place of bounded steps, and vLLM's priority alone.

    python benchmarks/live.py [--replicas 2] [--model h100-8b|a100x4-70b|llm-d|40m|300m] [--seconds 80]

By default the engine is simulated: its tokens cost time, and no CPU. `live_presets.py` has simulated engines with costs
of published measurements, whose prompts cost time, too; their steps are short, so that a slow machine delays them
itself. Tables go to `live*.md` in `benchmarks/results` by what has run, and beside each a plot of what live requests
have waited.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import harness
import models
import numpy as np
from live_presets import PRESETS, Scenario, toml

from batchyard.client.api import ApiClient

NAME = "live-bench"
BATCHES = ("30m", "2h", "24h")
WITHOUT_TARGETS = "{bound_steps = false, ttft_ms = 1e9, itl_ms = 1e9}"


@dataclass
class Outcome:
    """What one run measured.

    Attributes:
        first, gaps: seconds to the first piece of each answer, and between later ones.
        batch_tokens: output tokens of batch answers that were there when the live traffic ended.
    """

    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    live_tokens: int = 0
    errors: list[str] = field(default_factory=list)
    batch_tokens: int = 0
    batches: list[dict[str, Any]] = field(default_factory=list)
    redone: int = 0

    def figures(self) -> dict[str, Any]:
        """Return what a file of results keeps of the run."""
        return {
            "live requests": len(self.first),
            "TTFT p50, p99": percentiles(self.first),
            "ITL p50, p99": percentiles(self.gaps),
            "live tokens": self.live_tokens,
            "batch tokens": self.batch_tokens,
            "redone": self.redone,
        }


async def stream(session: aiohttp.ClientSession, url: str, body: dict[str, Any], outcome: Outcome) -> None:
    """Send one live request, and measure its stream."""
    began = time.monotonic()
    last = 0.0
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            if response.status != 200:
                outcome.errors.append(f"{response.status} {(await response.text())[:200]}")
                return
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    outcome.errors.append(str(chunk["error"])[:200])
                    return
                # A token may have no text, as the first bytes of a character. The first chunk alone has no token.
                if not chunk["choices"] or chunk["choices"][0]["delta"].get("role"):
                    continue
                now = time.monotonic()
                if last:
                    outcome.gaps.append(now - last)
                else:
                    outcome.first.append(now - began)
                last = now
                outcome.live_tokens += 1
    except aiohttp.ClientError as error:
        outcome.errors.append(repr(error)[:200])


async def traffic(server: ApiClient, key: str, scenario: Scenario, tier: str, outcome: Outcome) -> None:
    """Send live requests at the scenario's rates, whatever becomes of them, and wait for the last one."""
    chance = random.Random(7)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=600),
        headers={"Authorization": f"Bearer {key}"},
    ) as session:
        tasks = []
        at = began = time.monotonic()
        for number, rate in enumerate(scenario.rates):
            end = began + (number + 1) * scenario.phase_seconds
            while (at := at + chance.expovariate(rate)) < end:
                await asyncio.sleep(at - time.monotonic())
                body = request(chance, scenario, scenario.live_length(chance)) | {"stream": True, "service_tier": tier}
                tasks.append(asyncio.create_task(stream(session, server.url, body, outcome)))
            at = end
        await asyncio.sleep(began + scenario.seconds - time.monotonic())
        outcome.batch_tokens = await asyncio.to_thread(answered_tokens, server)
        await asyncio.gather(*tasks)


def request(chance: random.Random, scenario: Scenario, tokens: int) -> dict[str, Any]:
    """Return a chat with a prompt of its own, and an answer of so many tokens."""
    prompt = harness.words(scenario.prompt_words, chance.randrange(10**9))
    return harness.chat(prompt, tokens) | {"model": NAME}


def answered_tokens(server: ApiClient) -> int:
    """Return the output tokens of the batches' answers so far."""
    batches = list(server.batches())
    return sum(batch["usage"]["output_tokens"] for batch in batches if batch.get("usage"))


def run(scenario: Scenario, model: str, settings: dict[str, str], *, live: bool, batch: bool, tier: str) -> Outcome:
    """Run the scenario once, on a stack of its own whose engine is warm."""
    outcome = Outcome()
    with harness.stack(model, settings) as (server, data):
        key = (data / "admin.key").read_text().strip()
        warm = harness.chat("warm", 4) | {"model": NAME}
        harness.ended(server, harness.submit(server, data, [warm] * 8)["id"])
        submitted = []
        for number, window in enumerate(BATCHES if batch else ()):
            chance = random.Random(number)
            bodies = [request(chance, scenario, scenario.batch_length(chance)) for _ in range(scenario.batch_rows)]
            submitted.append(harness.submit(server, data, bodies, window=window)["id"])
        if batch:  # until its engine is at work
            while not answered_tokens(server) > 8 * 4:
                time.sleep(0.2)
        before = answered_tokens(server)
        asyncio.run(traffic(server, key, scenario if live else silent(scenario), tier, outcome))
        outcome.batch_tokens -= before
        if submitted and all(server.batch(batch_id)["completed_at"] for batch_id in submitted):
            outcome.errors.append("the batches ended before the live requests did: they need more rows")
        engines = server.call("GET", "/queue")["engines"] or []
        outcome.redone = sum(engine.get("redone_requests", 0) for engine in engines)
        outcome.batches = [harness.ended(server, batch_id) for batch_id in submitted]
    return outcome


def made(size: str) -> Path:
    """Return the folder of the model of this size, made at its first use."""
    folder = Path(tempfile.gettempdir()) / f"batchyard-{size}"
    if not (folder / "model.safetensors").exists():
        models.make(size, folder)
    return folder


def silent(scenario: Scenario) -> Scenario:
    """Return the scenario with no live request within its time."""
    return replace(scenario, rates=tuple(1e-9 for _ in scenario.rates))


def percentiles(values: Sequence[float]) -> list[float]:
    return [float(value) for value in np.percentile(values, [50, 99])] if values else [0.0, 0.0]


def milliseconds(values: Sequence[float]) -> str:
    return " / ".join(f"{1000 * value:.0f}" for value in percentiles(values))


def report(scenario: Scenario, outcomes: dict[str, Outcome]) -> str:
    """Return the table, and the ratios that matter."""
    rows = []
    for name, outcome in outcomes.items():
        done = [(batch["request_counts"], batch.get("batchyard", {})) for batch in outcome.batches]
        kept = sum(counts["completed"] == scenario.batch_rows for counts, _ in done)
        goodput = outcome.batch_tokens / scenario.seconds
        rows.append(
            [
                name,
                len(outcome.first),
                milliseconds(outcome.first) if outcome.first else "-",
                milliseconds(outcome.gaps) if outcome.gaps else "-",
                f"{outcome.live_tokens / scenario.seconds:,.0f}",
                f"{goodput:,.0f}",
                outcome.redone,
                len(outcome.errors),
                f"{kept} of {len(done)}",
            ]
        )
    columns = ["run", "live requests", "TTFT p50/p99, ms", "ITL p50/p99, ms", "live tokens/s", "batch tokens/s"]
    table = harness.table([*columns, "redone", "errors", "batches whole"], rows)
    alone, batch = outcomes.get("live alone"), outcomes.get("batches alone")
    if alone is None or batch is None:
        return table
    lines = [table]
    for name, both in outcomes.items():
        if name.startswith("both"):
            first = percentiles(both.first)[1] / percentiles(alone.first)[1]
            gap = percentiles(both.gaps)[1] / percentiles(alone.gaps)[1]
            goodput = both.batch_tokens / (batch.batch_tokens - both.live_tokens)
            line = (
                f"* {name}: TTFT p99 {first:.2f} of live alone, ITL p99 {gap:.2f}; batches' goodput {goodput:.2f} of "
                "what they have alone less what live requests took"
            )
            unprotected = outcomes.get("both, unprotected", both)
            if unprotected is not both:
                line += f", and {both.batch_tokens / unprotected.batch_tokens:.2f} of what they have unprotected"
            lines.append(f"{line}.")
    return "\n".join(lines)


def plot(name: str, outcomes: dict[str, Outcome]) -> None:
    """Draw which share of the live requests, and of their tokens, came within how long."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained", sharey=True)
    for run, outcome in outcomes.items():
        for axes, values in zip(panels, (outcome.first, outcome.gaps), strict=True):
            if values:
                places = np.linspace(0, 100, 1001)
                axes.plot(1000 * np.percentile(values, places), places, label=run)
    for axes, label in zip(panels, ("time to the first token, ms", "time between tokens, ms"), strict=True):
        axes.set_xscale("log")
        axes.set_xlabel(label)
    panels[0].set_ylabel("% within")
    panels[0].legend()
    figure.savefig(harness.RESULTS / f"{name}.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=80)
    parser.add_argument("--model", choices=[*PRESETS, "40m", "300m"], default="simulated")
    parser.add_argument("--only", nargs="*", help="the runs to make")
    parser.add_argument("--live", default="", help="TOML of the model's `live` table, such as '{itl_ms = 50}'")
    options = parser.parse_args()
    settings = {"BATCHYARD_ALLOW_SIMULATED": "1", "BATCHYARD_LIVE_REQUESTS_PER_MINUTE": "1000000"}
    both = {"live": True, "batch": True, "tier": "default"}
    runs: dict[str, dict[str, Any]] = {
        "live alone": {**both, "batch": False},
        "batches alone": {**both, "live": False},
        "both, unprotected": {**both, "tier": "flex"},
        "both, as shipped": both,
    }
    targets = options.live or "{}"
    others = {}
    preset = PRESETS.get(options.model)
    notes = [preset.note()] if preset is not None else []
    print(*notes, sep="\n", flush=True)
    if preset is not None:
        targets = options.live or toml(preset.live)
        entry = f'engine = "echo"\nreplicas = {options.replicas}\nengine_args = {toml(preset.arguments)}\n'
        scenario = preset.scenario(options.seconds, options.replicas)
    else:
        entry = (
            f'engine = "vllm"\nsource = "{made(options.model.upper())}"\n'
            "engine_args = {max_model_len = 1024, max_num_seqs = 16, max_num_batched_tokens = 128}\n"
        )
        # A prompt takes this engine on two CPUs two to three times as long as a token does, as in the scenario.
        scenario = Scenario((1.5, 0.1, 1.5, 0.1), options.seconds / 4, 13, (24, 12), (24, 12), 320)
    if options.model != "simulated":
        runs |= {"both, limits of places": both, "both, vLLM's priority alone": both}
        others = {
            "both, limits of places": targets.replace("{", "{bound_steps = false, ", 1).replace(", }", "}"),
            **dict.fromkeys(["both, unprotected", "both, vLLM's priority alone"], WITHOUT_TARGETS),
        }
    machine = harness.machine("ray")
    outcomes: dict[str, Outcome] = {}
    for name, parts in runs.items():
        if not options.only or name in options.only:
            model = f"[models.{NAME}]\nlive = {others.get(name, targets)}\n{entry}"
            outcomes[name] = run(scenario, model, settings, **parts)
            print(report(scenario, outcomes), flush=True)
            for error in outcomes[name].errors[:3]:
                print("error:", error)
    if len(outcomes) < len(runs):
        return
    name = "live" if options.model == "simulated" else f"live-{options.model}"
    name += f"-{options.replicas}-replicas" if options.replicas > 1 else ""
    kept = {
        run: {
            **outcome.figures(),
            "errors": outcome.errors,
            "batches": [batch["request_counts"] for batch in outcome.batches],
        }
        for run, outcome in outcomes.items()
    }
    facts = {"machine": machine, "simulated": preset is not None, "scenario": asdict(scenario), "runs": kept}
    harness.write(name, facts, *notes, report(scenario, outcomes))
    plot(name, outcomes)


if __name__ == "__main__":
    main()
