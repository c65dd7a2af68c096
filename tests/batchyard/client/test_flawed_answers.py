"""Rows without an answer, and answers that may not be whole, are said where a table is asked about."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from pathlib import Path

import pandas as pd
import pytest

import batchyard
from batchyard.cli import background
from batchyard.models import ModelSpec
from inference.engines.echo import Echo
from tests.support.engine_server import EngineServer
from tests.support.terminal import batchyard as command

TABLE = pd.DataFrame({"t": ["a b c", "d", None]})


@pytest.fixture
def server() -> EngineServer:
    return EngineServer(Echo(ModelSpec(name="echo", engine="echo", engine_args={"ms_per_token": 0.01}), 60.0))


def test_pandas_warns_with_counts_and_where_to_look(server: EngineServer) -> None:
    with pytest.warns(UserWarning, match="1 of 3 rows have no answer.*column t is empty.*details=True") as caught:
        answers = batchyard.map(TABLE, "{t}", model="echo", max_tokens=2, server=server, progress=False)
    assert "2 cut off at their limit of tokens; raise max_tokens; finish_reason=True" in str(caught[0].message)
    assert caught[0].filename == __file__
    assert answers[:2].tolist() == ["a b", "d d"] and pd.isna(answers[2])
    with pytest.warns(UserWarning):
        table = batchyard.map(TABLE, "{t}", model="echo", max_tokens=2, server=server, finish_reason=True)
    assert list(table) == ["answer", "finish_reason"] and table["finish_reason"][:2].tolist() == ["length", "length"]
    with pytest.warns(UserWarning, match="1 of 3 rows have no answer"):
        batchyard.classify(TABLE, "{t}", labels=["x", "y"], model="echo", server=server)


def test_answers_without_the_form_that_was_asked_for_are_counted(server: EngineServer) -> None:
    asked = {"structured_outputs": {"json": {"type": "number"}}}
    with pytest.warns(UserWarning, match=r"^of the answers, 1 not in the form that was asked for$"):
        answers = batchyard.map([{"t": "12"}, {"t": "twelve"}], "{t}", model="echo", server=server, **asked)
    assert answers == ["12", "twelve"]


def test_nothing_is_said_of_whole_answers(server: EngineServer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batchyard.map(TABLE[:2], "{t}", model="echo", server=server)


def test_map_counts_them_and_has_a_column_on_request(
    server: EngineServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "server", lambda *_: nullcontext(server))
    (tmp_path / "in.csv").write_text("t\na b c\nd\n")
    options = ["-t", "{t}", "-m", "echo", "--max-tokens", "2", "-o", "out.csv"]
    ended = command("map", "in.csv", *options, folder=tmp_path)
    assert "2 of 2 rows answered, 2 cut off at their limit of tokens (simulated): out.csv" in ended.stdout
    assert ended.returncode == 0 and (tmp_path / "out.csv").read_text().startswith("t,answer,error,tokens")
    assert ended.stderr.splitlines()[-1] == "batchyard: warning: of the answers, 2 cut off at their limit of tokens"
    ended = command("map", "in.csv", *options, "--finish-reason", "--json", folder=tmp_path)
    assert '"cut_off": 2' in ended.stdout
    assert (tmp_path / "out.csv").read_text().splitlines()[1].startswith("a b c,a b,length,")
