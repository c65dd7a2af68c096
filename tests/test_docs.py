"""What the documents say is what the code does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import openai
import pytest
from stacks import ROOT, RunningStack

from store import batches

README = (ROOT / "README.md").read_text()


def test_the_readme_shows_every_setting() -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "docs/settings_table.py"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert made.stdout.strip() in README


def test_the_design_shows_the_table_of_transitions() -> None:
    design = (ROOT / "docs/design.md").read_text()
    rows = re.findall(r"^\| (validating|in_progress|finalizing|cancelling) \| (.+) \|$", design, re.MULTILINE)
    assert {status: frozenset(following.split(", ")) for status, following in rows} == {
        status: following for status, following in batches.TRANSITIONS.items() if following
    }


def test_every_file_that_the_documents_name_is_there() -> None:
    for document in ("README.md", "docs/design.md", "docs/api.md"):
        text = (ROOT / document).read_text()
        for name in re.findall(r"\b(?:webapp|tasks|inference|store|batchyard|examples|docs)/[\w/.]*\w", text):
            assert (ROOT / name).exists(), f"{document} names {name}"


def test_the_ten_line_client_works_as_it_is_written(
    stack: RunningStack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    here = code[1].replace("http://127.0.0.1:8000", stack.url).replace("data/admin.key", str(stack.data / "admin.key"))
    here = here.replace("examples/quickstart.jsonl", str(quickstart_for(stack)))
    assert here.count("\n") <= 10
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    exec(compile(here, "README.md", "exec"), {"openai": openai})
    assert capsys.readouterr().out.count('"status_code":200') == 8


def test_the_commands_of_the_api_page_run_one_after_the_other(stack: RunningStack, tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/api.md").read_text(), re.DOTALL)
    script = "set -euo pipefail\n" + "".join(blocks)
    script = script.replace("http://127.0.0.1:8000", stack.url).replace("data/admin.key", str(stack.data / "admin.key"))
    script = script.replace("examples/quickstart.jsonl", str(quickstart_for(stack))).replace("mini", "nano")
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    answers = (tmp_path / "answers.jsonl").read_text().splitlines()
    assert sorted(answers) == sorted((tmp_path / "so-far.jsonl").read_text().splitlines())
    assert "What is 7 + 8?" in done.stdout


def quickstart_for(stack: RunningStack) -> object:
    """The quick start's requests, for the model that the shared stack serves."""
    source = stack.data.parent / "quickstart.jsonl"
    source.write_text((ROOT / "examples/quickstart.jsonl").read_text().replace('"mini"', '"nano"'))
    return source
