"""What the documents say is what the code does."""

from __future__ import annotations

import re
import subprocess
import sys

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
    for document in ("README.md", "docs/design.md"):
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


def quickstart_for(stack: RunningStack) -> object:
    """The quick start's requests, for the model that the shared stack serves."""
    source = stack.data.parent / "quickstart.jsonl"
    source.write_text((ROOT / "examples/quickstart.jsonl").read_text().replace('"mini"', '"nano"'))
    return source
