"""Take the pictures in docs/images: the web pages of a stack of its own that answers example requests and rows.

One of them moves: a batch's page while it runs, light and dark.

    python docs/screenshots.py

Needs the extra `dev` and Chromium (Debian: apt install chromium).
"""

from __future__ import annotations

import io
import itertools
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from batchyard.cli import background
from batchyard.cli.watch import watch
from batchyard.client.api import ApiClient
from batchyard.statuses import TERMINAL

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs/images"
REQUESTS, QUICKSTART = ROOT / "examples/requests.jsonl", ROOT / "examples/quickstart.jsonl"
CHAT = "/v1/chat/completions"
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
WIDE, NARROW, LOW = {"width": 1280, "height": 860}, {"width": 390, "height": 860}, {"width": 1280, "height": 640}
FILMED = {"width": 1180, "height": 780}
FILMED_COPIES = 5
"""Times that the example requests stand in the batch of the moving picture: enough for half a minute."""
SECONDS_APART = 1.0
"""Between two frames."""
FASTER = 2
"""The moving picture runs so many times as fast as what it shows."""
LAST_FRAME_MS = 3000
EXPERIMENT = ROOT / "examples/recipes/experiment.yaml"
PROMPTS_SAMPLED = 60
PROMPTS = "text\nThe film was dull and far too long.\nI laughed from the first minute to the last.\nThe sound was poor."


def submit(server: ApiClient, path: Path, steps: list[dict[str, str]]) -> str:
    return str(server.create(server.upload(path), endpoint=CHAT, post_process=steps)["id"])


def rollout(server: ApiClient, folder: Path) -> str:
    """Sample the first example requests eight times each, and return the id of the ended job."""
    rows = folder / "prompts.jsonl"
    requests = [json.loads(line) for line in REQUESTS.read_text().splitlines()[:PROMPTS_SAMPLED]]
    with rows.open("w") as file:
        for request in requests:
            body, metadata = request["body"], request["body"]["metadata"]
            row = {
                "custom_id": request["custom_id"],
                "prompt": body["messages"],
                "answer": metadata["expected"],
                "data_source": metadata["task"],
            }
            file.write(json.dumps(row) + "\n")
    options = {
        "model": "mini",
        "n": 8,
        "reward": "exact",
        "ground_truth": "answer",
        "sampling": {"temperature": 1.2, "max_tokens": 32},
    }
    return ended(
        server, server.create_job(recipe="rollout", input_file_id=server.upload(rows, "user_data"), options=options)
    )


def ended(server: ApiClient, job: dict[str, Any]) -> str:
    """Wait for the end of a job, and return its id."""
    while job["status"] not in TERMINAL:
        time.sleep(0.5)
        job = server.job(job["id"])
    return str(job["id"])


def experiment(server: ApiClient) -> str:
    """Run the example experiment, and return the id of its job."""
    options = yaml.safe_load(EXPERIMENT.read_text())
    rows = server.upload(EXPERIMENT.parent / options.pop("input"), "user_data")
    return ended(server, server.create_job(recipe="experiment", input_file_id=rows, options=options))


def film(browser: Browser, page: Page, server: ApiClient, folder: Path) -> Path:
    """Take the moving picture, in both colour schemes at once, by two visitors of one batch. Return its file."""
    path = folder / "questions.jsonl"
    with path.open("w") as file:
        for copy in range(FILMED_COPIES):
            for line in REQUESTS.read_text().splitlines():
                request = json.loads(line)
                request["custom_id"] += f"-{copy}"
                request["body"]["temperature"] = 0.7  # else equal requests would run once
                file.write(json.dumps(request) + "\n")
    schemes = ("light", "dark")
    visitors = []
    for scheme in schemes:
        context = browser.new_context(
            base_url=server.url,
            storage_state=page.context.storage_state(),
            viewport=FILMED,
            color_scheme=scheme,
            reduced_motion="reduce",
        )
        visitors.append(context.new_page())
    batch_id = submit(server, path, [{"step": "score"}])
    frames: list[list[Image.Image]] = [[] for _ in schemes]
    times: list[float] = []
    for visitor in visitors:
        visitor.goto(f"/batches/{batch_id}")
    over = False
    while not over:
        over = all(visitor.locator("#live >> text=completed").count() for visitor in visitors)
        times.append(time.monotonic())
        for visitor, own in zip(visitors, frames, strict=True):
            own.append(Image.open(io.BytesIO(visitor.screenshot())).convert("RGB"))
        visitors[0].wait_for_timeout(1000 * SECONDS_APART)
    durations = [round(1000 * (after - before) / FASTER) for before, after in itertools.pairwise(times)]
    durations.append(LAST_FRAME_MS)
    for scheme, visitor, own in zip(schemes, visitors, frames, strict=True):
        name = IMAGES / f"running-{scheme}.webp"
        own[0].save(name, save_all=True, append_images=own[1:], duration=durations, loop=0, quality=50, method=6)
        print(f"docs/images/{name.name}: {len(own)} frames, {name.stat().st_size / 1000:.0f} kB")
        visitor.context.close()
    return path


def shoot_paused(page: Page, server: ApiClient, path: Path) -> None:
    """Shoot the page of a batch of this file that somebody has paused."""
    batch_id = submit(server, path, [{"step": "score"}])
    while server.batch(batch_id)["request_counts"]["completed"] < 100:
        time.sleep(0.1)
    server.control(batch_id, "pause")
    page.goto(f"/batches/{batch_id}")
    page.locator("#chart .drawing").first.wait_for()
    page.wait_for_timeout(3000)  # what the engine has is answered meanwhile
    shoot(page, "paused")
    server.control(batch_id, "cancel")


def shoot_job(page: Page, job_id: str) -> None:
    """Shoot an ended job's page, and the page of an item that is sometimes right."""
    page.goto(f"/jobs/{job_id}")
    page.locator(".charts").first.wait_for()
    shoot(page, "job")
    page.goto(f"/jobs/{job_id}?tab=items")
    page.locator("#items td a").first.click()
    page.locator(".answers").first.wait_for()
    page.evaluate("document.querySelector('.turn').scrollIntoView()")
    shoot(page, "item")


def shoot_try(page: Page) -> None:
    """Shoot the page to try a prompt, with an answer that was streamed."""
    messages = json.loads(REQUESTS.read_text().splitlines()[1])["body"]["messages"]
    page.goto("/models/mini/try")
    page.get_by_label("Prompt").fill(messages[-1]["content"])
    page.get_by_label("Temperature").fill("0")
    page.get_by_role("button", name="Send").click()
    page.get_by_text("tokens in").wait_for()
    page.set_viewport_size(LOW)
    shoot(page, "try")
    page.set_viewport_size(WIDE)


def shoot(page: Page, name: str) -> None:
    """Write a picture of what the browser shows, in 256 colours: a third of the bytes, and no eye sees it."""
    path = IMAGES / f"{name}.png"
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"docs/images/{path.name}: {path.stat().st_size / 1000:.0f} kB")


def main() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("no chromium here; on Debian: apt install chromium")
    IMAGES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="by-") as folder,
        background.stack(Path(folder) / "data", ROOT / "models.toml") as server,
        sync_playwright() as playwright,
    ):
        for path in (QUICKSTART, REQUESTS):  # so that the pages show measured speeds
            watch(server, server.batch(submit(server, path, [{"step": "score"}])))
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        page = browser.new_page(base_url=server.url, viewport=WIDE, device_scale_factor=1.5, reduced_motion="reduce")
        page.goto("/")
        page.get_by_label("API key").fill((Path(folder) / "data/admin.key").read_text().strip())
        page.get_by_role("button", name="Sign in").click()

        page.goto("/begin")
        shoot(page, "start")
        page.goto("/new")
        page.get_by_label("Or type or paste it here").fill(PROMPTS)
        page.get_by_label("The text above is").select_option("csv")
        page.get_by_label("Template").fill("Is this review good or bad? {text}")
        page.locator("#shown .ask").nth(2).wait_for()
        shoot(page, "new")

        shoot_try(page)
        filmed = film(browser, page, server, Path(folder))
        running = [submit(server, REQUESTS, [{"step": "score"}]) for _ in range(3)]
        page.goto("/")
        while server.batch(running[0])["request_counts"]["completed"] < 400:
            time.sleep(0.1)
        page.wait_for_timeout(3000)
        shoot(page, "batches")
        for batch_id in running:
            watch(server, server.batch(batch_id))
        page.goto(f"/batches/{running[0]}")
        page.locator("#chart .drawing").first.wait_for()
        shoot(page, "batch")
        shoot_paused(page, server, filmed)
        shoot_job(page, rollout(server, Path(folder)))
        page.goto(f"/jobs/{experiment(server)}")
        page.locator(".charts").first.wait_for()
        shoot(page, "experiment")
        page.emulate_media(color_scheme="dark")
        page.set_viewport_size(NARROW)
        page.goto(f"/batches/{running[0]}")
        page.locator("#chart .drawing").first.wait_for()
        shoot(page, "batch-narrow")
        browser.close()


if __name__ == "__main__":
    main()
