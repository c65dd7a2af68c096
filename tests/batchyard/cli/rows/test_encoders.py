"""The example encoders: vectors, labels and rankings from Python and from the terminal, the same from both."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import batchyard
from batchyard.cli import background
from inference.engines.transformers.engine import Transformers
from tests.support import encoders
from tests.support.engine_server import EngineServer
from tests.support.terminal import batchyard as terminal


@pytest.fixture(scope="module")
def engines() -> EngineServer:
    return EngineServer(*(Transformers(encoders.encoder(name, "transformers"), 60) for name in encoders.SERVED))


@pytest.fixture
def server(engines: EngineServer, monkeypatch: pytest.MonkeyPatch) -> EngineServer:
    """The server that commands find, too."""
    monkeypatch.setattr(background, "server", lambda *_: nullcontext(engines))
    return engines


def run(folder: Path, *arguments: str, code: int = 0) -> None:
    ended = terminal(*arguments, folder=folder)
    assert ended.returncode == code, ended.stderr


def test_neighbours_make_sense(server: Any, tmp_path: Path) -> None:
    table, before = pd.DataFrame({"text": encoders.TEXTS}), len(server.made)
    made = [vector.tolist() for vector in batchyard.embed(table, "text", model="embed", progress=False, server=server)]

    def ask(_endpoint: str, _body: dict[str, Any]) -> dict[str, Any]:
        return {"data": [{"embedding": vector} for vector in made]}

    encoders.vectors(ask)
    table.to_csv(tmp_path / "texts.csv")
    run(tmp_path, "embed", "texts.csv", "-t", "text", "-m", "embed", "-o", "v.npy", "--dtype", "float16")
    matrix = np.load(tmp_path / "v.npy")
    assert matrix.dtype == np.float16 and matrix == pytest.approx(np.array(made), abs=1e-3)
    run(tmp_path, "embed", "texts.csv", "-t", "{text}", "-m", "embed", "-o", "v.parquet")
    assert len(server.made) == before + 2, "the commands share a batch; the call sends many texts in a request"
    rows = pq.read_table(tmp_path / "v.parquet").to_pylist()
    assert [row["text"] for row in rows] == encoders.TEXTS
    assert rows[0]["embedding"] == pytest.approx(made[0], abs=1e-6) and rows[0]["error"] is None


def test_labels_are_right(server: Any, tmp_path: Path) -> None:
    reviews = pd.DataFrame({"text": [*encoders.REVIEWS, None]})
    made = batchyard.classify(reviews, "{text}", model="sentiment", details=True, progress=False, server=server)
    assert made["label"].tolist()[:-1] == list(encoders.REVIEWS.values())
    assert made["probability"].dropna().between(0.5, 1).all() and made["error"].tolist()[-1] == "column text is empty"
    reviews.to_json(tmp_path / "reviews.jsonl", orient="records", lines=True)
    command = ("classify", "reviews.jsonl", "-t", "{text}", "-m", "sentiment", "-o", "labels.jsonl")
    run(tmp_path, *command, "-l", "positive", "-l", "negative", code=1)
    rows = [json.loads(line) for line in (tmp_path / "labels.jsonl").read_text().splitlines()]
    assert {row["error"] for row in rows if row["label"] is None} == {
        "the answer 'neutral' is none of the labels",
        "column text is empty",
    }


def test_the_relevant_document_comes_first(server: Any, tmp_path: Path) -> None:
    ranked = batchyard.rerank(encoders.QUERY, encoders.DOCUMENTS, model="rerank", progress=False, server=server)
    assert [document.index for document in ranked[:2]] == [1, 3]
    assert ranked[0].document == encoders.DOCUMENTS[1] and ranked[0].score > ranked[1].score
    (tmp_path / "q.jsonl").write_text(json.dumps({"query": encoders.QUERY, "documents": encoders.DOCUMENTS}))
    run(tmp_path, "rerank", "q.jsonl", "-m", "rerank", "-o", "out.jsonl", "--top", "1")
    (row,) = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert row["ranking"] == [{"index": 1, "score": ranked[0].score, "document": encoders.DOCUMENTS[1]}]
