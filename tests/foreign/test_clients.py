"""Each client gets the answers to its prompts, in each way that it has. `make foreign` makes their environments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from batchyard.models import vllm_installed
from tests.foreign.clients import CLIENTS, answers, bin_folder
from tests.support.stacks import RunningStack, a_chat

PROMPTS = ["When does the train leave?", "What is 2 + 3?", 'Say "naïve" in\ntwo lines.']
OF_TEXT = [client for client, entry in CLIENTS.items() if entry["ways"] and client != "instructor"]


@pytest.mark.parametrize("client", OF_TEXT)
def test_an_unmodified_client_gets_every_answer_in_each_of_its_ways(
    stack: RunningStack, client: str, tmp_path: Path
) -> None:
    file = tmp_path / "batch.jsonl"
    lines = [a_chat(str(number), prompt) for number, prompt in enumerate(PROMPTS)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    variables = {"MODEL": "echo", "EMBEDDING_MODEL": "vectors", "BATCH_FILE": str(file)}
    by_way = answers(client, stack, PROMPTS, tmp_path, **variables)
    assert by_way == dict.fromkeys(CLIENTS[client]["ways"], PROMPTS)


@pytest.mark.vllm
@pytest.mark.skipif(not vllm_installed(), reason="structured answers need vLLM")
def test_instructor_gets_objects_of_its_schema_from_batches_and_live(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    bin_folder("instructor")  # skips before a stack starts
    vllm_stack: RunningStack = request.getfixturevalue("vllm_stack")
    by_way = answers("instructor", vllm_stack, PROMPTS, tmp_path, STRUCTURED_MODEL="mini")
    assert set(by_way) == set(CLIENTS["instructor"]["ways"])
    for labels in by_way.values():
        assert len(labels) == len(PROMPTS) and set(labels) <= {"question", "statement"}
