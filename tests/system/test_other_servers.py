"""`transformers serve` and llama.cpp, started and owned by a stack: batches, streams, and what doctor says of them.

`make foreign CLIENTS=llama_cpp` makes the environment of the second.
"""

from __future__ import annotations

import shlex
import shutil
from typing import Any

import pytest

from inference.doctor import servers
from tests.conftest import StartStack
from tests.foreign.clients import FOLDER, bin_folder
from tests.support.rows import until
from tests.support.stacks import ROOT, RunningStack, a_chat

NANO = ROOT / "examples/models/nano"
ROWS = 20
LACKING = {
    "transformers": {"embeddings", "logprobs", "n", "max_completion_tokens", "response_format json_schema", "tools"},
    "llama_cpp": {"embeddings", "tools"},
}
"""What doctor finds missing; model `nano` calls no tools."""


@pytest.fixture(scope="module")
def stack(start_stack: StartStack, tmp_path_factory: pytest.TempPathFactory) -> RunningStack:
    hub = tmp_path_factory.mktemp("hub")
    repository = hub / "models--batchyard--nano"
    shutil.copytree(NANO, repository / "snapshots" / "1")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("1")
    llama = shlex.join(["python", str(FOLDER / "programs" / "llama_cpp.py"), str(NANO)])
    python = ROOT / ".venv-foreign" / "llama_cpp" / "bin" / "python"
    return start_stack(f"""
[models.transformers]
engine = "server"
command = "transformers serve batchyard/nano --host {{host}} --port {{port}}"
env = {{ HF_HUB_CACHE = "{hub}", HF_HUB_OFFLINE = "1" }}
[models.llama_cpp]
engine = "server"
command = "{llama} {{host}} {{port}}"
python = "{python}"
""")


@pytest.mark.parametrize("name", ["transformers", pytest.param("llama_cpp", marks=pytest.mark.exhaustive)])
def test_a_server_answers_batches_and_streams_and_doctor_says_what_it_lacks(stack: RunningStack, name: str) -> None:
    if name == "llama_cpp":
        bin_folder(name)  # skips without its environment
    asked: dict[str, Any] = {"model": name, "max_tokens": 8, "temperature": 0}
    rows = [a_chat(str(number), f"What is {number} + 7?", **asked) for number in range(ROWS)]
    batch = stack.wait(stack.submit([*rows, a_chat("two", "What is 1 + 1?", n=2, **asked)]), seconds=400)
    texts = {}
    for line in stack.lines(batch.output_file_id):
        body = line["response"]["body"]
        assert body["usage"]["completion_tokens"] > 0 and body["model"] == name
        assert body["choices"][0]["finish_reason"] == "stop"
        texts[line["custom_id"]] = body["choices"][0]["message"]["content"]
    errors = stack.lines(batch.error_file_id)
    if "n" in LACKING[name]:
        assert [line["response"]["body"]["error"]["param"] for line in errors] == ["n"]
    assert texts.keys() - {"two"} == {str(number) for number in range(ROWS)} and len(texts) + len(errors) == ROWS + 1
    stream = stack.client.chat.completions.create(
        **rows[3]["body"], stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    words = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(words) == texts["3"] and len(words) > 2
    assert any(chunk.usage and chunk.usage.completion_tokens for chunk in chunks)
    until(lambda: len(stack.engines(name)) == 1)  # it is published every 5 s
    (engine,) = stack.engines(name)
    findings = servers.check(servers.listed(engine["endpoints"][0]["url"]), None)
    assert {finding.check for finding in findings if finding.result != "ok"} == LACKING[name]
