"""A package outside this repository adds an engine and a step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.stacks import ROOT, RunningStack, a_chat

MODELS = f"""
[models.polly]
engine = "parrot"
source = "{ROOT}/examples/models/nano"
engine_args = {{word = "polly"}}
"""

FILES = {
    "pyproject.toml": """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "batchyard-parrot"
version = "1.0"

[project.entry-points."batchyard.engines"]
parrot = "parrot:Parrot"

[project.entry-points."batchyard.steps"]
loud = "loud:STEP"

[tool.setuptools]
py-modules = ["parrot", "loud"]
""",
    "parrot.py": '''
"""Engine `parrot`: claims to be a model, but for what its class says."""

from pydantic import BaseModel, ConfigDict

from inference.engine import Engine, EngineAnswer


class ParrotArguments(BaseModel):
    model_config = ConfigDict(extra="forbid")
    word: str


class Parrot(Engine):
    name = "parrot"
    simulated = True
    arguments = ParrotArguments

    @classmethod
    def unsupported(cls, spec, endpoint, body):
        return None

    async def start(self):
        self.word = self.spec.engine_args["word"]

    async def answer(self, endpoint, body):
        message = {"role": "assistant", "content": self.word}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return EngineAnswer(200, {"object": "chat.completion", "choices": [choice], "usage": usage})

    def versions(self):
        return {"engine": "parrot", "version": "1", "model_sha256": "0" * 64}

    async def stop(self):
        pass
''',
    "loud.py": '''
"""Step `loud`: the answers in capitals."""

from tasks.steps.step import Step, StepOptions


class LoudOptions(StepOptions):
    mark: str = "!"


def loud(results, options):
    with results.create() as file:
        for row in results.rows():
            file.write(f"{row.text.upper()}{options.mark}\\n".encode())
    results.add("loud.txt", file.sha256, file.size)


STEP = Step("loud", "the answers in capitals.", LoudOptions, loud)
''',
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that pip has installed the package into."""
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name, text in FILES.items():
        (source / name).write_text(text)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    result = subprocess.run([*pip, "--target", site, source], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return site


@pytest.mark.stack
def test_a_packages_simulated_engine_starts_only_where_that_is_allowed(site: Path, tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(MODELS)
    result = subprocess.run(
        [Path(sys.executable).parent / "batchyard", "up", "--data", tmp_path / "data", "--port", "0"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site), "BATCHYARD_ALLOW_SIMULATED": "0"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert result.returncode == 2, result.stderr
    assert "models.polly: engine parrot gives simulated answers; set BATCHYARD_ALLOW_SIMULATED=1" in result.stderr


def test_a_package_adds_an_engine_whose_answers_are_marked_and_a_step(
    site: Path, start_stack: Callable[..., RunningStack]
) -> None:
    stack = start_stack(MODELS, PYTHONPATH=str(site), BATCHYARD_ALLOW_SIMULATED="1")
    (model,) = stack.client.models.list().data
    assert model.batchyard["engine"] == "parrot"  # type: ignore[attr-defined]
    assert model.batchyard["simulated"] is True  # type: ignore[attr-defined]

    steps = [{"step": "loud", "mark": "?"}]
    requests = [a_chat(f"r{number}", "hello", model="polly") for number in range(3)]
    batch = stack.wait(stack.submit(requests, extra_body={"post_process": steps}))
    assert batch.status == "completed", batch.to_json()
    assert batch.batchyard["simulated"] is True
    assert batch.batchyard["post_process"] == [{**steps[0], "status": "completed"}]
    bodies = [line["response"]["body"] for line in stack.lines(batch.output_file_id)]
    assert [(body["simulated"], body["choices"][0]["message"]["content"]) for body in bodies] == [(True, "polly")] * 3
    manifest = json.loads(stack.artifact(batch, "manifest.json"))
    assert manifest["simulated"] is True
    (engine,) = manifest["models"]["polly"]["engines"]
    assert engine == {"engine": "parrot", "version": "1", "simulated": "true"}
    assert stack.artifact(batch, "loud.txt") == b"POLLY?\n" * 3
