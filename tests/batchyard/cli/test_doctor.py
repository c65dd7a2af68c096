"""`batchyard doctor` and `up --check`: a table, a JSON document, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import Reply, Server, answer, listening
from tests.support.stacks import ROOT
from tests.support.terminal import batchyard

GOOD = f"[models.a]\nengine='transformers'\nsource='{ROOT}/examples/models/nano'\n"
WRONG = "[models.b]\nengine='transformers'\nsource='/nowhere'\n"


@pytest.mark.parametrize("command", [("doctor",), ("up", "--check")])
def test_each_check_has_a_line_with_its_remedy_and_one_that_failed_exits_2(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "models.toml").write_text(GOOD)
    good = batchyard(*command, folder=tmp_path)
    assert good.returncode == 0, good.stderr
    assert good.stdout.splitlines()[0].split() == ["model", "check", "result", "detail", "remedy"]
    (tmp_path / "models.toml").write_text(GOOD + WRONG)
    wrong = batchyard(*command, folder=tmp_path)
    assert wrong.returncode == 2
    assert "make it, or name a hub id" in wrong.stdout and "1 of 6 checks failed" in wrong.stderr
    assert not (tmp_path / "data").exists()


def test_the_checks_are_one_json_document_for_scripts(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(GOOD + WRONG)
    result = batchyard("doctor", "b", "--json", folder=tmp_path)
    (finding,) = json.loads(result.stdout)
    assert (result.returncode, finding["model"], finding["check"], finding["result"]) == (2, "b", "source", "failed")


def test_up_refuses_a_wrong_name_of_an_argument_at_once(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(GOOD + "engine_args.batch_sizes=3")
    result = batchyard("up", "--port", "0", "--flower-port", "0", folder=tmp_path)
    assert result.returncode == 2
    assert "models.a.engine_args.batch_sizes: engine transformers has no such argument" in result.stderr
    assert "did you mean batch_size?" in result.stderr


def test_a_server_is_asked_without_a_models_file_and_one_that_cannot_be_used_exits_1(tmp_path: Path) -> None:
    with listening(Server()) as server:
        good = batchyard("doctor", "--server", server.url, folder=tmp_path)
    assert good.returncode == 0, good.stderr
    lines = {line.split()[1]: line for line in good.stdout.splitlines()}
    assert " ok" in lines["chat"] and "answers are not held to a schema" in lines["response_format"]
    gone = batchyard("doctor", "--server", server.url, "--json", folder=tmp_path)
    (finding,) = json.loads(gone.stdout)
    assert (gone.returncode, finding["result"]) == (1, "failed") and finding["remedy"].startswith("start it")
    assert "cannot be used" in gone.stderr
    both = batchyard("up", "--server", server.url, "--models", "models.toml", folder=tmp_path)
    assert both.returncode == 2 and "takes the place of the models file" in both.stderr


class Crowded(Server):
    """A server whose answers have one word more while it has several requests."""

    def chosen(self, body: dict[str, Any]) -> Reply:
        completion = json.loads(answer(body).body or b"")
        (choice,) = completion["choices"]
        choice["message"]["content"] += " again" * (self.at_once > 1)
        choice["logprobs"] = {"content": []}
        return Reply(body=json.dumps(completion).encode())


@pytest.mark.long
def test_answers_that_depend_on_other_requests_are_reported_and_exit_1(tmp_path: Path) -> None:
    models = tmp_path / "models.toml"
    models.write_text("[models.echo]\nengine='echo'\nreproducible=true")
    simulated = {"BATCHYARD_ALLOW_SIMULATED": "1"}
    sound = batchyard("doctor", "echo", "--reproducible", folder=tmp_path, **simulated)
    assert sound.returncode == 0, sound.stderr
    assert "0 of 200 answers differ" in sound.stdout and "expect 0.0 to 1.8 % of all" in sound.stdout
    with listening(Crowded(latency=0.005)) as server:
        entry = "[models.theirs]\nengine='openai'\nendpoints=['/v1/chat/completions']\n"
        entry += f"engine_args.endpoints=[{{url='{server.url}'}}]\n"
        models.write_text(f"{entry}reproducible=true")
        refused = batchyard("doctor", "theirs", "--reproducible", folder=tmp_path)
        assert refused.returncode == 2
        assert "may depend on other requests: its server chooses the requests" in refused.stdout
        models.write_text(entry)
        found = batchyard("doctor", "theirs", "--reproducible", "--json", folder=tmp_path)
    assert found.returncode == 1, found.stderr
    assert "answers of theirs depend on the requests that run beside them" in found.stderr
    finding = json.loads(found.stdout)[-1]
    assert (finding["check"], finding["result"]) == ("same answers", "failed")
    assert "text from character" in finding["detail"]
    assert finding["remedy"] == "use engine vllm with reproducible = true", "its own engine refuses that"


def test_a_named_model_whose_answers_cannot_be_compared_exits_1(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text("[models.echo]\nengine='echo'\nendpoints=['/rerank']")
    every = ("doctor", "--reproducible")
    assert batchyard(*every, folder=tmp_path, BATCHYARD_ALLOW_SIMULATED="1").returncode == 0
    named = batchyard(*every, "echo", folder=tmp_path, BATCHYARD_ALLOW_SIMULATED="1")
    assert named.returncode == 1
    assert "model echo was not tested: the model serves none of /v1/chat/completions" in named.stderr
