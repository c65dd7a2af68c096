"""The documents agree with the code: each block of theirs is run or checked."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import types
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any
from unittest import mock

import click
import pyarrow.parquet as pq
import pytest
import standardwebhooks
import yaml

from batchyard.cli import main
from batchyard.cli.recipes.group import RecipeCommand
from batchyard.client.answers import Structure
from batchyard.models import ModelSpec
from batchyard.statuses import JOB_TRANSITIONS, TRANSITIONS
from inference import catalog
from inference.engine import Capabilities
from inference.engines import registry
from store.artifacts import Artifacts
from store.database import Database
from store.formats.results import ResultRow
from store.records import Batch, File
from tasks.steps import registry as step_registry
from tests.support.stacks import ROOT, RunningStack

DOCUMENTS = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]

CARDS = "tests/webapp/pages/starting/test_cards.py starts what it does from a card"
# Shell that is not run here, by its document and first line, with the reason. Its syntax is checked: see below.
NOT_RUN = {
    ("README.md", "make demo"): "installs; tests/system/test_demo.py runs what the demo runs",
    ("README.md", ".venv/bin/batchyard up\n"): "starts the stack that is running",
    ("README.md", ".venv/bin/batchyard up --server"): "needs a server: tests/system/test_up_servers.py starts some",
    ("docs/install.md", "make install"): "installs; tests/deploy tests its parts",
    ("docs/quickstart.md", "make install"): "installs, and starts the stack that is running",
    ("docs/start.md", ".venv/bin/batchyard submit examples/prompts.txt"): CARDS,
    ("docs/start.md", ".venv/bin/batchyard map examples"): CARDS,
    ("docs/start.md", ".venv/bin/batchyard eval examples/evaluate.yaml"): CARDS,
    ("docs/api.md", "batchyard schedule create --name inbox"): "tests/tasks/recurring/test_watching.py watches some",
    ("docs/cascade.md", "batchyard map reviews.csv"): "tests/system/test_cascade.py and test_map.py run such ones",
    ("docs/cascade.md", "batchyard map notes.csv"): "tests/batchyard/cli/rows/test_map.py runs one",
    ("docs/cascade.md", "batchyard filter tickets.csv"): "tests/batchyard/client/test_filter.py runs one",
    ("docs/cascade.md", "batchyard match crm.csv"): "tests/batchyard/client/test_match.py runs one",
    ("docs/engines.md", "batchyard doctor --reproducible"): "tests/batchyard/cli/test_doctor.py runs such ones",
    ("docs/engines.md", "batchyard models add"): "tests/system/test_models_while_running.py runs such ones",
    ("docs/evaluation.md", "batchyard eval examples/evaluate.yaml"): "tests/batchyard/cli/test_eval.py runs such ones",
    ("docs/start.md", ".venv/bin/batchyard generate"): CARDS,
    ("docs/start.md", ".venv/bin/batchyard rollout examples/rollout.jsonl -c examples/synthetic.yaml"): CARDS,
    ("docs/python.md", ".venv/bin/batchyard lm-eval"): "needs lm-evaluation-harness: tests/foreign/test_lm_eval.py",
    ("docs/start.md", ".venv/bin/batchyard submit examples/corpus.csv"): CARDS,
    ("docs/start.md", ".venv/bin/batchyard rank"): CARDS,
    ("docs/start.md", ".venv/bin/batchyard transcribe"): "tests/system/test_media.py transcribes a folder on vLLM",
    ("docs/start.md", ".venv/bin/batchyard submit examples/audio.jsonl"): "tests/system/test_media.py runs the file",
    ("docs/start.md", "make install"): "needs a GPU",
    (
        "docs/export.md",
        "batchyard submit reviews.jsonl --post-process 'export:url=s3",
    ): "tests/tasks/steps/test_export.py",
    (
        "docs/export.md",
        "batchyard submit reviews.jsonl --post-process 'export:url=table",
    ): "the same, test_export_tables.py",
    ("docs/plan.md", "batchyard plan reviews.jsonl  "): "tests/system/test_plan.py runs it",
    ("docs/plan.md", "batchyard plan reviews.jsonl -m"): "the same",
    ("docs/plan.md", "batchyard job create evaluate"): "the same, with another recipe",
    ("docs/plan.md", "batchyard submit reviews.jsonl --stop-when"): "the same",
    ("docs/verify.md", "batchyard download"): "tests/batchyard/cli/console/test_verify.py runs them",
    ("docs/verify.md", "batchyard key signing"): "tests/batchyard/test_signatures.py runs them",
    ("docs/clients.md", "export OPENAI_BASE_URL"): "tests/foreign/test_clients.py sets them for each client",
    ("docs/clients.md", "inspect eval"): "needs inspect-ai: tests/foreign/test_inspect.py",
    ("docs/start.md", ".venv/bin/batchyard up --host"): "starts the stack that is running",
    ("docs/start.md", "export BATCHYARD_URL"): "needs another machine",
    ("docs/package.md", "export BATCHYARD_URL"): "tests/system/test_distributions.py runs it in a venv of its own",
    ("docs/python.md", ".venv/bin/batchyard embed"): "tests/batchyard/cli/rows/test_encoders.py runs such ones",
    ("docs/recipes.md", "batchyard panel examples/panel.jsonl"): "tests/system/test_panel.py runs a panel on a stack",
    ("docs/recipes.md", "batchyard panel tasks.jsonl"): "the same, with options in place of the file",
    ("docs/recipes.md", "batchyard tune examples"): "tests/system/test_tune.py runs one on a stack",
    ("docs/recipes.md", "batchyard refine examples/rollout.jsonl"): "tests/system/test_refine.py runs it on a stack",
    ("docs/recipes.md", "BATCHYARD_RECIPES="): "tests/batchyard/cli/test_jobs.py runs a recipe of a folder",
    ("docs/recipes.md", "batchyard job stuck JOB"): "tests/system/test_jobs.py replies to items of a job",
    (
        "docs/agents.md",
        "export BATCHYARD_TOOL_SANDBOX",
    ): "needs bubblewrap; test_pool.py names another",
    ("docs/agents.md", "batchyard tool add"): "tests/recipes/test_mcp_servers.py asks a server of its own",
    ("docs/operations.md", ".venv/bin/batchyard up"): "starts the stack that is running",
    ("docs/deploy.md", "export POSTGRES_PASSWORD"): "needs Docker",
    ("docs/deploy.md", "export IMAGE="): "needs Docker; tests/compose does it",
    ("docs/operations.md", "docker compose exec web batchyard backup"): "needs Docker",
    ("docs/deploy.md", "docker pull"): "needs Docker",
    ("docs/deploy.md", "kubectl create secret"): "needs Kubernetes; see test_chart_values.py",
    ("docs/deploy.md", "needed=$(curl"): "needs SLURM",
    ("docs/deploy.md", "sbatch --gpus"): "needs SLURM: tests/deploy/test_slurm.py runs the script",
    ("docs/deploy.md", "export DATABASE_URL"): "needs a cloud: tests/deploy/test_skypilot.py takes a stack's disk",
    ("docs/operations.md", "pip install 'batchyard[otel]'"): "installs; tests/system/test_faults.py has a collector",
    ("docs/operations.md", "prometheus --config.file"): "tests/system/test_monitoring.py runs it where it is installed",
}
# Blocks of these kinds are checked; blocks of another kind, or of none, are only for people.
CHECKED = {"sh", "python", "toml", "json"}
SHOWN = {"": "a drawing", "ini": "a unit of systemd", "yaml": "an object of Kubernetes"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    document: str
    kind: str
    text: str

    @property
    def why_not_run(self) -> str | None:
        reasons = (
            why for (name, start), why in NOT_RUN.items() if name == self.document and self.text.startswith(start)
        )
        return next(reasons, None)


def blocks(kind: str, document: str | None = None) -> list[Block]:
    return [block for block in BLOCKS if block.kind == kind and document in (None, block.document)]


BLOCKS = [
    Block(document, kind, text)
    for document in DOCUMENTS
    for kind, text in re.findall(r"^```([^\n]*)\n(.*?)^```$", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)
]


@pytest.fixture
def clone(stack: RunningStack, tmp_path: Path) -> Path:
    """A folder like a clone in which `batchyard up` runs; its data are the shared stack's."""
    (tmp_path / "examples").mkdir()
    for name in (
        "quickstart.jsonl",
        "rollout.jsonl",
        "panel.jsonl",
        "panel.yaml",
        "reviews.csv",
        "corpus.csv",
        "agent.jsonl",
    ):
        text = (ROOT / "examples" / name).read_text()
        (tmp_path / "examples" / name).write_text(
            text.replace('"mini"', '"nano"').replace("model: mini", "model: nano")
        )
    for name in ("models", "recipes"):
        (tmp_path / "examples" / name).symlink_to(ROOT / "examples" / name)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for name in ("batchyard", "python"):
        (tmp_path / ".venv/bin" / name).symlink_to(Path(sys.executable).parent / name)
    (tmp_path / "data").symlink_to(stack.data)
    shutil.copy(ROOT / "models.toml", tmp_path)
    return tmp_path


@pytest.fixture
def run_shell(stack: RunningStack, clone: Path) -> Callable[..., str]:
    """Runs all shell blocks of a document in one shell; returns the output."""

    def run(document: str, **environment: str) -> str:
        scripts = [block.text for block in blocks("sh", document) if block.why_not_run is None]
        script = "set -euo pipefail\n" + "".join(scripts).replace("http://127.0.0.1:8000", stack.url)
        script = script.replace("| head -n 1", "| sed -n 1p")  # head may end before what writes to it
        script = script.replace('model=mini -F prompts="$(seq 300)"', 'model=worded -F prompts="$(seq 300)"')  # slow
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("BATCHYARD_")}
        completed = subprocess.run(
            ["bash", "-c", script.replace("mini", "nano")],
            cwd=clone,
            capture_output=True,
            text=True,
            timeout=600,
            env={**inherited, **environment},
        )
        assert completed.returncode == 0, completed.stdout + completed.stderr
        return completed.stdout

    return run


def test_every_block_is_run_or_told_why_not() -> None:
    assert {block.kind for block in BLOCKS} <= CHECKED | SHOWN.keys()
    excused = [block for block in blocks("sh") if block.why_not_run]
    assert len(excused) == len(NOT_RUN), "an excuse is for one block that is there"
    run = {block.document for block in blocks("sh") if block not in excused}
    shell = (
        "README.md",
        "docs/agents.md",
        "docs/api.md",
        "docs/costs.md",
        "docs/live.md",
        "docs/operations.md",
        "docs/python.md",
        "docs/quickstart.md",
        "docs/slow.md",
    )
    assert run == set(shell), "each has its test below"
    assert {block.document for block in blocks("python")} == {
        *("README.md", "docs/agents.md", "docs/anthropic.md", "docs/api.md", "docs/extending.md", "docs/live.md"),
        *("docs/package.md", "docs/python.md", "docs/quickstart.md", "docs/recipes.md"),
    }


def test_shell_that_is_not_run_is_shell_and_names_what_there_is() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for block in blocks("sh"):
        checked = subprocess.run(["bash", "-n"], input=block.text.replace("<batch>", "B"), text=True, check=False)
        assert checked.returncode == 0, block.text
        for name in re.findall(r"docker compose (?:run --rm|exec(?: -T)?|logs --follow) (\w+)", block.text):
            assert name in services
        for names in re.findall(r"docker compose stop ([\w ]+)", block.text):
            assert set(names.split()) <= services.keys()
        for line in re.findall(r"^(?:\.venv/bin/|docker compose run --rm migrate )batchyard (.*)$", block.text, re.M):
            words = re.split("[#|]", line)[0].split()
            command: Any = main.cli
            while hasattr(command, "commands"):
                if command.invoke_without_command and (not words or words[0].startswith("-")):
                    break
                command = command.get_command(click.Context(command), words.pop(0))
            if isinstance(command, RecipeCommand):  # only a server knows its options
                continue
            options = {option for parameter in command.params for option in parameter.opts}
            handed_on = command.context_settings.get(
                "ignore_unknown_options"
            )  # to a program of others, which says what it knows
            assert handed_on or {word for word in words if word.startswith("-")} <= options, line


def test_the_guide_for_contributors_names_files_and_targets_that_exist() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    paths = re.findall(r"`((?:[\w-]+/)+[\w.-]*|\w+\.(?:md|toml))`", guide)
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []
    targets = re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"make ([a-z-]+)", guide)) <= set(" ".join(targets).split())


def test_the_page_of_settings_shows_every_setting() -> None:
    table = subprocess.run(
        [sys.executable, ROOT / "docs/settings_table.py"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert table.stdout.strip() in (ROOT / "docs/settings.md").read_text()


def test_the_design_shows_the_transitions_of_batches_and_of_jobs() -> None:
    design = (ROOT / "docs/design.md").read_text()
    cells = r"^\| (waiting|validating|in_progress|finalizing|cancelling)\b[^|]* \| ([^|]*?) ?\| ([^|]+) \|$"
    rows = re.findall(cells, design, re.MULTILINE)
    for column, transitions in ((1, TRANSITIONS), (2, JOB_TRANSITIONS)):
        shown = {row[0]: frozenset(row[column].split(", ")) for row in rows if row[column]}
        assert shown == {status: successors for status, successors in transitions.items() if successors}


def test_every_file_and_page_that_the_documents_name_is_there() -> None:
    folders = "webapp|tasks|recipes|inference|store|batchyard|examples|docs|tests"
    for document in DOCUMENTS:
        text = (ROOT / document).read_text()
        for name in re.findall(rf"(?<![\w/])(?:{folders})/[\w/.-]*\w", text):
            assert (ROOT / name).exists(), f"{document} names {name}"
        for link, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
            page = (ROOT / document).parent / link if link else ROOT / document
            assert page.exists(), f"{document} links to {link}"
            assert not anchor or anchor in anchors(page.read_text()), f"{document} links to {link}#{anchor}"


def test_the_site_lists_every_page() -> None:
    """`make docs` checks their links."""
    navigation = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    listed = [
        page for group in navigation for entries in group.values() for entry in entries for page in entry.values()
    ]
    written = {"index.md", "commands/index.md", "CHANGELOG.md", "CONTRIBUTING.md"}
    assert sorted(listed) == sorted(written | {path.name for path in (ROOT / "docs").glob("*.md")})


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_setting_that_the_documents_name_is_one() -> None:
    table = (ROOT / "docs/settings.md").read_text()
    settings = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) | {"BATCHYARD_COMPLETE"}
    for document in DOCUMENTS:
        named = set(re.findall(r"BATCHYARD_\w*[A-Z]", (ROOT / document).read_text()))
        assert named <= settings, document


# The quick start has the README's calls and its command; docs/python.md has the README's data frame and more.
ALSO = pytest.mark.exhaustive


@pytest.mark.parametrize("document", ["README.md", pytest.param("docs/quickstart.md", marks=ALSO)])
def test_the_client_in_python_works_as_it_is_written(
    document: str,
    stack: RunningStack,
    clone: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(clone)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (block,) = (block for block in blocks("python", document) if "OpenAI(" in block.text)
    if document == "README.md":
        assert block.text.count("\n") <= 10
    exec(compile(block.text.replace("http://127.0.0.1:8000", stack.url), document, "exec"), {})
    assert capsys.readouterr().out.count('"status_code":200') == 8


def test_the_page_of_live_requests_streams_and_chats_as_it_is_written(
    stack: RunningStack,
    clone: Path,
    run_shell: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(clone)
    (block,) = blocks("python", "docs/live.md")
    text = block.text.replace("http://127.0.0.1:8000", stack.url).replace("mini", "nano")
    exec(compile(text, "docs/live.md", "exec"), {})
    assert capsys.readouterr().out.strip()
    shown, _, document = run_shell("docs/live.md").partition("\n")
    assert shown and json.loads(document)["usage"]["completion_tokens"] > 0


@pytest.mark.exhaustive
def test_the_page_of_agents_calls_tools_and_asks_live_as_it_is_written(
    stack: RunningStack, clone: Path, run_shell: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tools, calls, loop, outside = blocks("python", "docs/agents.md")
    example = (ROOT / "examples/recipes/shop.py").read_text()
    assert tools.text in example and calls.text.splitlines()[0].strip() in example
    compile(f"def flow():\n    {loop.text.strip().replace(chr(10), chr(10) + '    ')}", "docs/agents.md", "exec")
    shown = run_shell("docs/agents.md")
    assert "price  retriable" in shown and "\n6\n" in shown
    rows = pq.read_table(clone / "out.parquet").to_pylist()
    assert [(row["result"], row["score"]) for row in rows][:2] == [("6", 1.0), ("4", 1.0)]
    monkeypatch.chdir(clone)
    namespace: dict[str, Any] = {}
    text = outside.text.replace("http://127.0.0.1:8000", stack.url).replace("mini", "nano")
    exec(compile(text, "docs/agents.md", "exec"), namespace)
    assert [message["role"] for message in namespace["messages"]] == ["user", "assistant", "user", "assistant", "user"]


@pytest.mark.parametrize("document", [pytest.param("README.md", marks=ALSO), "docs/python.md"])
def test_data_frames_get_their_answers_as_it_is_written(
    document: str, clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clone)
    monkeypatch.setattr(Structure, "response_format", None)  # which engine transformers does not take
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks("python", document):
        # tests/system/test_media.py runs what needs a model that hears.
        if "OpenAI(" not in block.text and "transcribe(" not in block.text:
            exec(compile(block.text.replace("mini", "nano"), document, "exec", dont_inherit=True), namespace)
    answers = namespace["reviews"]["answer"]
    assert answers.isna().tolist() == [False, False, False, True, False, False]
    assert answers[0] == '{"sentiment": "positive"}'
    if document == "docs/python.md":
        assert namespace["reviews"]["sentiment"][0] == "positive"


def test_the_receiver_of_webhooks_in_python_takes_what_is_signed_and_nothing_else() -> None:
    (block,) = blocks("python", "docs/api.md")
    secret = "whsec_" + "c2VjcmV0" * 4
    namespace: dict[str, Any] = {"__name__": "receiver"}
    exec(compile(block.text.replace("whsec_…", secret), "docs/api.md", "exec"), namespace)
    receiver = namespace["app"].test_client()
    event = {"id": "evt_1", "object": "event", "created_at": 1, "type": "batch.completed", "data": {"id": "batch_1"}}
    now, body = datetime.now(UTC), json.dumps(event)
    signature = standardwebhooks.Webhook(secret).sign("evt_1", now, body)
    headers = {"webhook-id": "evt_1", "webhook-timestamp": str(int(now.timestamp())), "webhook-signature": signature}
    assert receiver.post("/batches", data=body, headers=headers).status_code == 204
    assert receiver.post("/batches", data=body + " ", headers=headers).status_code == 400
    assert receiver.post("/batches", data=body).status_code == 400


def test_the_recipe_of_ones_own_is_the_example_and_its_tests_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    example, gated, tests = blocks("python", "docs/recipes.md")
    for block, name in ((example, "debate"), (gated, "patch")):
        assert block.text == (ROOT / f"examples/recipes/{name}.py").read_text()
    monkeypatch.syspath_prepend(ROOT / "examples/recipes")
    namespace: dict[str, Any] = {"__name__": "tests_of_a_recipe"}
    exec(compile(tests.text, "docs/recipes.md", "exec"), namespace)
    functions = [value for name, value in namespace.items() if name.startswith("test_")]
    assert len(functions) == 2
    for function in functions:
        function()


def test_the_commands_of_the_api_page_run_one_after_the_other(run_shell: Callable[..., str], clone: Path) -> None:
    printed = run_shell("docs/api.md")
    answers = (clone / "answers.jsonl").read_text().splitlines()
    assert sorted(answers) == sorted((clone / "so-far.jsonl").read_text().splitlines())
    assert "What is 7 + 8?" in printed


def test_the_commands_of_the_costs_page_run_one_after_the_other(run_shell: Callable[..., str]) -> None:
    printed = run_shell("docs/costs.md")
    assert '"state": "ok"' in printed


def test_the_commands_of_the_readme_run_one_after_the_other(run_shell: Callable[..., str], clone: Path) -> None:
    printed = run_shell("README.md")
    assert "8 of 8 requests answered: answers.jsonl" in printed
    assert printed.count('"status_code":200') == 8


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_commands_of_the_page_on_slow_batches_run(run_shell: Callable[..., str]) -> None:
    assert "/v1/chat/completions" in run_shell("docs/slow.md")


def test_the_commands_of_the_quick_start_run_one_after_the_other(run_shell: Callable[..., str], clone: Path) -> None:
    printed = run_shell("docs/quickstart.md")
    assert "8 of 8 requests answered: answers.jsonl" in printed
    assert len((clone / "answers.jsonl").read_text().splitlines()) == 8
    assert json.loads(printed.splitlines()[-1]) == {"total": 8, "completed": 8, "failed": 0}


def test_the_commands_of_the_python_page_run_one_after_the_other(run_shell: Callable[..., str], clone: Path) -> None:
    assert "5 of 6 rows answered: reviews.parquet" in run_shell("docs/python.md")
    assert (clone / "reviews.parquet").exists()


@pytest.mark.exhaustive
def test_the_commands_of_the_operations_page_back_up_and_restore(
    run_shell: Callable[..., str], stack: RunningStack, clone: Path
) -> None:
    batch = stack.wait(stack.submit((clone / "examples/quickstart.jsonl").read_text()))
    printed = run_shell("docs/operations.md")
    assert "batchyard_batches{" in printed
    restored = Database(f"sqlite:///{clone}/restored/batchyard.db")
    with restored.read() as session:
        record = session.get_one(Batch, batch.id)
        assert record.status == "completed"
        sha256 = session.get_one(File, record.output_file_id).sha256
    restored.close()
    assert (
        Artifacts(f"file://{clone}/restored/artifacts").read(sha256)
        == stack.client.files.content(batch.output_file_id).read()
    )


def test_models_files_in_the_documents_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLE_KEY", "secret")
    examples = [block for block in blocks("toml") if block.document != "docs/extending.md"]
    assert len(examples) == 14
    for block in examples:
        (tmp_path / "models.toml").write_text(block.text)
        assert catalog.load(tmp_path / "models.toml")


def test_json_in_the_documents_is_json() -> None:
    for block in blocks("json"):
        json.loads(block.text)


class Results:
    """The results of a batch, as a step reads them."""

    def __init__(self, artifacts: Artifacts, rows: list[ResultRow]) -> None:
        self.artifacts, self._rows, self.added = artifacts, rows, dict[str, bytes]()

    def rows(self) -> list[ResultRow]:
        return self._rows

    def create(self) -> Any:
        return self.artifacts.create()

    def add(self, name: str, sha256: str, size: int, lines: int | None = None) -> None:
        self.added[name] = self.artifacts.read(sha256)


def test_the_step_of_the_extending_page_runs(artifacts: Artifacts) -> None:
    code = next(block.text for block in blocks("python", "docs/extending.md") if "STEP =" in block.text)
    answers = [{"choices": [{"message": {"content": text}}]} for text in ("one", "one two three")]
    results = Results(artifacts, [ResultRow(n, f"r{n}", {}, 200, answer, None) for n, answer in enumerate(answers)])
    with mock.patch.dict(
        step_registry.STEPS.added, {"words": documented_entry_point("batchyard.steps", "words", code)}
    ):
        step_registry.run({"step": "words", "least": 2}, results)
    assert json.loads(results.added["words.jsonl"]) == {"custom_id": "r1", "words": 3}


def test_the_engine_of_the_extending_page_answers() -> None:
    code = next(block.text for block in blocks("python", "docs/extending.md") if "(Engine)" in block.text)
    models = next(block.text for block in blocks("toml", "docs/extending.md") if "[models." in block.text)
    (entry,) = tomllib.loads(models)["models"].values()
    spec = ModelSpec(name="bag", **{**entry, "source": str(ROOT / entry["source"])})
    added = {"token-bag": documented_entry_point("batchyard.engines", "token-bag", code)}
    with mock.patch.dict(registry.ENGINES.added, added):
        registry.check_arguments(spec)
        engine_class = registry.engine_class("token-bag")
    assert engine_class.unsupported(spec, "/v1/embeddings", {"input": ["a", "b"]})
    engine = engine_class(spec, 5.0)
    bodies = [{"model": "bag", "input": text} for text in ("one two", "two one", "", "three")]
    assert [engine.unsupported(spec, "/v1/embeddings", body) for body in bodies] == [None] * 4

    async def ask() -> list[Any]:
        await engine.start()
        return [await engine.answer("/v1/embeddings", body) for body in bodies]

    answers = asyncio.run(ask())
    assert [answer.status_code for answer in answers] == [200, 200, 400, 200]
    vector = answers[0].body["data"][0]["embedding"]
    assert len(vector) == 64
    assert sum(value * value for value in vector) == pytest.approx(1)
    assert engine.versions()["engine"] == "token-bag"


def test_the_extending_page_has_a_row_for_each_attribute_of_an_engine() -> None:
    rows = re.findall(r"^\| `(\w+)[`(]", (ROOT / "docs/extending.md").read_text(), re.MULTILINE)
    attributes = {name for name in vars(Capabilities) | Capabilities.__annotations__ if not name.startswith("_")}
    assert set(rows) == attributes - {"unsupported", "adds_replicas"}, "the code and jobs' own are not in the table"


def documented_entry_point(group: str, name: str, code: str) -> EntryPoint:
    """An entry point of the package of docs/extending.md; its module is imported with this code."""
    package = next(block.text for block in blocks("toml", "docs/extending.md") if "entry-points" in block.text)
    entry = EntryPoint(name, tomllib.loads(package)["project"]["entry-points"][group][name], group)
    module = sys.modules[entry.module] = types.ModuleType(entry.module)
    exec(compile(code, entry.module, "exec"), module.__dict__)
    return entry
