"""A cell gives the same prompt, or the same refusal by row and column, through every door that takes a table."""

from __future__ import annotations

import base64
import bz2
import datetime
import decimal
import gzip
import io
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from flask.testing import FlaskClient

from batchyard.cli import background, batches
from batchyard.cli.rows.map import map_
from batchyard.client.map import map as map_table
from batchyard.errors import ConfigurationError
from batchyard.recipes import Item
from batchyard.wording import without_code
from jobs import messages
from jobs import validation as job_validation
from store.formats import items as items_file
from store.records import Job
from tasks.context import AppContext
from tasks.intake import validation
from tests.support.webapps import client_of, context_in, upload

polars = pytest.importorskip("polars")
datasets = pytest.importorskip("datasets")
images = pytest.importorskip("PIL.Image")

SCORED = {"model": "echo", "reward": "exact", "ground_truth": "n"}
TEMPLATE = "{{cell}}: {cell}"
PREFIX = "{cell}: "
EMPTY = "column cell is empty"
BINARY = "column cell holds binary data, which is no text"
HALF = "column cell has half of a character (a lone surrogate), which is no text"
FRAMES = ("pandas", "polars", "pyarrow", "datasets", "rows")
TYPED = (*FRAMES, "map .parquet", "submit .parquet", "start .parquet", "job .parquet")
JSON_LINES = ("map .jsonl", "map .jsonl.bz2", "submit .ndjson", "start .jsonl.gz", "job .jsonl.gz", "job .ndjson.zst")
INLINE = ("job items",)
TEXTS = ("map .csv.gz", "submit .tsv", "submit .csv.zst", "start .csv", "start .tsv.bz2", "job .csv", "job .tsv.gz")
PYTHON = ("pandas", "rows")
DAY = datetime.date(2026, 11, 25)
CASES: list[tuple[str, Any, str, tuple[str, ...]]] = [
    ("text", "two\nlines", "two\nlines", (*TYPED, *JSON_LINES, *INLINE, *TEXTS)),
    ("emoji", "\U0001f600", "\U0001f600", (*TYPED, *JSON_LINES, *INLINE, *TEXTS)),
    ("NA", "NA", "NA", (*TYPED, *JSON_LINES, *INLINE, *TEXTS)),
    ("braces", "{{cell}", "{{cell}", (*TYPED, *JSON_LINES, *INLINE, *TEXTS)),
    ("empty", "", EMPTY, (*TYPED, *JSON_LINES, *INLINE, *TEXTS)),
    ("null", None, EMPTY, (*TYPED, *JSON_LINES, *INLINE)),
    ("NaN", math.nan, EMPTY, TYPED),
    ("integer", 3, "3", (*TYPED, *JSON_LINES, *INLINE)),
    ("number", 1.5, "1.5", (*TYPED, *JSON_LINES, *INLINE)),
    ("whole number", 2.0, "2", (*TYPED, *JSON_LINES, *INLINE)),
    ("bool", True, "true", (*TYPED, *JSON_LINES, *INLINE)),
    ("list", ["a", 1], '["a", 1]', (*JSON_LINES, *INLINE, *PYTHON)),
    ("typed list", [40, 41], "[40, 41]", (*TYPED, *JSON_LINES, *INLINE)),
    ("dict", {"a": [1, None], "ä": "b"}, '{"a": [1, null], "ä": "b"}', (*TYPED, *JSON_LINES, *INLINE)),
    ("bytes", b"\x89PNG", BINARY, TYPED),
    ("bytes inside", {"bytes": b"\x89PNG", "path": "a"}, BINARY, TYPED),
    ("date", DAY, "2026-11-25", TYPED),
    ("decimal", decimal.Decimal("1.50"), "1.50", TYPED),
    ("numpy number", np.float32(1.5), "1.5", PYTHON),
    ("numpy array", np.arange(2000), str(list(range(2000))), PYTHON),
    ("NA of pandas", pd.NA, EMPTY, PYTHON),
    ("half", "cut \ud83d", HALF, (*PYTHON, *JSON_LINES)),
    ("image", images.new("RGB", (1, 1)), "column cell holds an image, which is no text", PYTHON),
]


def reason(error: dict[str, Any]) -> str:
    """Return the message of an error without its code, which the error of a line has not."""
    return without_code(error["message"], error["code"])


class Server:
    """The API client of the terminal and of `map`, over the web app: what it is sent is answered with itself."""

    url = "http://test"

    def __init__(self, client: FlaskClient, context: AppContext) -> None:
        self._client, self._context = client, context
        self.files: dict[str, bytes] = {}

    def models(self) -> list[dict[str, Any]]:
        return [{"id": "echo", "batchyard": {"simulated": True, "endpoints": ["/v1/chat/completions"]}}]

    def batches(self) -> Iterator[dict[str, Any]]:
        return iter(())

    def upload(self, file: Path) -> str:
        self.files[file.name] = file.read_bytes()
        return file.name

    def create(self, file_id: str, **_options: Any) -> dict[str, Any]:
        counts = dict.fromkeys(("total", "completed", "failed"), 0)
        return {
            "id": file_id,
            "status": "completed",
            "output_file_id": file_id,
            "error_file_id": None,
            "request_counts": counts,
            "batchyard": {"warnings": []},
        }

    def lines(self, file_id: str) -> Iterator[bytes]:
        for line in self.files[file_id].splitlines():
            request = json.loads(line)
            choice = {"message": request["body"]["messages"][-1], "finish_reason": "stop"}
            response = {"status_code": 200, "body": {"choices": [choice], "usage": {"completion_tokens": 1}}}
            yield orjson.dumps({"custom_id": request["custom_id"], "response": response})

    def start(self, file: Path, form: dict[str, str], *, dry_run: bool = False) -> dict[str, Any]:
        fields = {**form, "file": (io.BytesIO(file.read_bytes()), file.name)}
        answer: dict[str, Any] = self._client.post("/start", data=fields, content_type="multipart/form-data").get_json()
        if "error" in answer:
            raise ConfigurationError(reason(answer["error"]))
        self.files[answer["batch_id"]] = answer["file_id"].encode()
        return answer

    def batch(self, batch_id: str) -> dict[str, Any]:
        return {"id": self.files[batch_id].decode(), "batchyard": {"warnings": []}}

    def page(self, _id: str) -> str:
        return ""


@pytest.fixture(scope="module")
def context(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppContext]:
    """A context that all tests here share: each looks at what it has made itself."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(messages, "validate", lambda *_: None)
        yield context_in(tmp_path_factory.mktemp("doors"), redis_url=broker)


@pytest.fixture(scope="module")
def client(context: AppContext) -> FlaskClient:
    return client_of(context)


@pytest.fixture
def server(client: FlaskClient, context: AppContext, monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server(client, context)
    monkeypatch.setattr(batches, "connect", lambda data: made)

    class Running:
        def __enter__(self) -> Server:
            return made

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(background, "server", lambda *_: Running())
    return made


def content(kind: str, cell: Any) -> bytes:
    """A file of two rows with this cell."""
    name, _, compression = kind.strip().removeprefix(".").partition(".")
    if name == "parquet":
        file = io.BytesIO()
        pq.write_table(pa.table({"n": ["0", "1"], "cell": pa.array([cell, cell])}), file)
        return file.getvalue()
    if name in ("csv", "tsv"):
        text = io.StringIO(newline="")
        table = pd.DataFrame({"n": ["0", "1"], "cell": [cell, cell]})
        table.to_csv(text, index=False, sep="\t" if name == "tsv" else ",")
        raw = text.getvalue().encode()
    else:
        raw = b"".join(json.dumps({"n": str(n), "cell": cell}).encode() + b"\n" for n in (0, 1))
    compress: dict[str, Callable[[bytes], bytes]] = {
        "gz": gzip.compress,
        "bz2": bz2.compress,
        "zst": lambda raw: pa.compress(raw, "zstd", asbytes=True),
    }
    return compress[compression](raw) if compression else raw


def by_map(door: str, cell: Any, server: Server) -> list[str]:
    frame: dict[str, Callable[[Any], Any]] = {
        "pandas": lambda: pd.DataFrame({"cell": pd.Series([cell, cell], dtype=object)}),
        "polars": lambda: polars.DataFrame({"cell": [cell, cell]}),
        "pyarrow": lambda: pa.table({"cell": pa.array([cell, cell])}),
        "datasets": lambda: datasets.Dataset(pa.table({"cell": pa.array([cell, cell])})),
        "rows": lambda: [{"cell": cell}, {"cell": cell}],
    }
    table = frame[door]()
    try:
        details = map_table(table, TEMPLATE, model="echo", details=True, progress=False, server=server)
    except ConfigurationError as error:
        assert str(error).startswith("no row can be sent; row 1: ")
        return [str(error).partition("row 1: ")[2]] * 2
    rows = details.to_dict("records") if door == "pandas" else _rows(details)
    return [row["answer"] if isinstance(row["answer"], str) else row["error"] for row in rows]


def _rows(table: Any) -> list[dict[str, Any]]:
    if isinstance(table, list | datasets.Dataset):
        return list(table)
    rows: list[dict[str, Any]] = table.to_dicts() if isinstance(table, polars.DataFrame) else table.to_pylist()
    return rows


def by_terminal_map(kind: str, cell: Any, folder: Path, context: AppContext) -> list[str]:
    (folder / f"in{kind}").write_bytes(content(kind, cell))
    arguments = [str(folder / f"in{kind}"), "-t", TEMPLATE, "-m", "echo", "-o", str(folder / "out.jsonl")]
    ended = CliRunner().invoke(
        map_, [*arguments, "--data", str(folder / "data"), "--models", str(context.settings.models)]
    )
    if isinstance(ended.exception, ConfigurationError):
        return [str(ended.exception)] * 2
    rows = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    return [row["answer"] or row["error"] for row in rows]


def by_submit(kind: str, cell: Any, folder: Path, context: AppContext, client: FlaskClient) -> list[str]:
    (folder / f"in{kind}").write_bytes(content(kind, cell))
    arguments = [str(folder / f"in{kind}"), "-t", TEMPLATE, "-m", "echo"]
    ended = CliRunner().invoke(batches.submit, arguments, catch_exceptions=True)
    if isinstance(ended.exception, ConfigurationError):
        return [str(ended.exception)] * 2
    assert ended.exit_code == 0, ended.output
    return prompts_of(client, ended.stdout.strip())


def prompts_of(client: FlaskClient, file_id: str) -> list[str]:
    lines = client.get(f"/v1/files/{file_id}/content").data.split(b"\n")
    return [json.loads(line)["body"]["messages"][0]["content"] for line in lines if line]


def by_start(kind: str, cell: Any, client: FlaskClient) -> list[str]:
    form = {"model": "echo", "template": TEMPLATE, "file": (io.BytesIO(content(kind, cell)), f"in{kind}")}
    answer = client.post("/start", data=form, content_type="multipart/form-data").get_json()
    return [reason(answer["error"])] * 2 if "error" in answer else prompts_of(client, answer["file_id"])


def by_job(kind: str, cell: Any, client: FlaskClient, context: AppContext) -> list[str]:
    request: dict[str, Any] = {"recipe": "rollout", "options": {**SCORED, "template": TEMPLATE}}
    if kind == "items":
        request["input"] = {"items": [{"n": "0", "cell": cell}, {"n": "1", "cell": cell}]}
    else:
        file = upload(client, content(kind, cell), name=f"in{kind}", purpose="user_data").get_json()
        request["input_file_id"] = file["id"]
    job_id = client.post("/v1/jobs", json=request).get_json()["id"]
    assert job_validation.run(context, job_id, "here/1/task")
    job = client.get(f"/v1/jobs/{job_id}").get_json()
    if job["errors"]:
        errors = job["errors"]["data"]
        assert [error["line"] for error in errors] == [1, 2], errors
        return [error["message"] for error in errors]
    with context.database.read() as session:
        record = session.get_one(Job, job_id)
    rows = items_file.Reader(context.artifacts, record.items_sha256).read(0, 2)
    items = [Item(row.number, row.custom_id, row.columns, template=TEMPLATE) for row in rows]
    return [item.messages[0]["content"] for item in items]


def through_doors() -> Iterator[Any]:
    """Yield each case by each of its doors.

    Those that only differ in the format of the file are exhaustive, and so are those of `submit`, which `start` shows:
    it sends the file there as it is.
    """
    for name, cell, text, doors in CASES:
        ways: set[str] = set()
        for door in doors:
            way = door.partition(" ")[0]
            again = (way in ways or way == "submit") and name not in ("text", "empty", "null", "integer")
            ways.add(way)
            marks = [pytest.mark.exhaustive] if again else []
            yield pytest.param(door, cell, text, id=f"{name} by {door}", marks=marks)


@pytest.mark.parametrize(("door", "cell", "expected"), through_doors())
def test_a_cell_is_the_same_prompt_or_refusal_through_every_door(
    door: str,
    cell: Any,
    expected: str,
    client: FlaskClient,
    context: AppContext,
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    way, _, kind = door.partition(" ")
    outcomes = {
        "map": lambda: by_terminal_map(kind, cell, tmp_path, context),
        "submit": lambda: by_submit(kind, cell, tmp_path, context, client),
        "start": lambda: by_start(kind, cell, client),
        "job": lambda: by_job(kind, cell, client, context),
    }.get(way, lambda: by_map(door, cell, server))()
    assert len(outcomes) == 2
    if not expected.startswith("column cell"):
        assert outcomes == [PREFIX + expected] * 2
        return
    for number, outcome in enumerate(outcomes, 1):
        assert expected in outcome
        if way in ("start", "submit"):  # which name the first bad row
            assert outcome.startswith(("Row 1", "Line 1", "Line 2", "Line 3"))
        elif way == "job":
            assert outcome.startswith(f"Row {number}:")


def test_a_row_that_makes_no_prompt_is_skipped_with_an_error_line(client: FlaskClient, context: AppContext) -> None:
    table = b"text\nThe soup was cold.\n\nLovely staff.\n"
    form = {"model": "echo", "on_invalid": "skip", "file": (io.BytesIO(table), "in.csv")}
    started = client.post("/start", data=form, content_type="multipart/form-data").get_json()
    assert validation.run(context, started["batch_id"], "here/1/task")
    batch = client.get(f"/v1/batches/{started['batch_id']}").get_json()
    assert (batch["request_counts"]["total"], batch["errors"]) == (3, None)
    refused = json.loads(client.get(f"/v1/files/{started['file_id']}/content").data.splitlines()[1])
    assert refused["refused"] == {
        "code": "empty_value",
        "message": "Line 3: column text is empty.",
        "param": "text",
    }


@pytest.mark.parametrize(
    "kind", [".parquet", ".jsonl", *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in (".csv", ".tsv.gz"))]
)
def test_20_mib_are_a_prompt_within_the_limit_and_one_refused_line_beyond_it(
    kind: str, broker: str, tmp_path: Path
) -> None:
    cell = "x" * (20 * 2**20)
    context = context_in(tmp_path, redis_url=broker, max_line_bytes=32 * 2**20)
    prompts = by_start(kind, cell, client_of(context))
    assert [len(prompt) for prompt in prompts] == [len(PREFIX) + len(cell)] * 2
    if kind != ".parquet":
        context = context_in(tmp_path, redis_url=broker)
        (message, _) = by_start(kind, cell, client_of(context))
        assert message == f"Line {1 if kind == '.jsonl' else 2} is longer than {16 * 2**20} bytes."


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".tsv.gz"])
def test_a_job_has_as_many_items_as_a_one_column_table_has_lines(kind: str, client: FlaskClient) -> None:
    raw = b"prompt\nThe soup was cold.\n\nLovely staff.\n"
    content = gzip.compress(raw, mtime=0) if kind.endswith("gz") else raw
    file = upload(client, content, name=f"in{kind}", purpose="user_data").get_json()
    body = {"recipe": "rollout", "options": SCORED, "input_file_id": file["id"]}
    assert client.post("/v1/jobs?dry_run=true", json=body).get_json()["items"] == 3


@pytest.mark.parametrize("kind", [".csv", ".tsv.gz"])
@pytest.mark.parametrize("way", ["start", "job"])
def test_every_door_takes_what_counts_as_empty(
    way: str, kind: str, client: FlaskClient, context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "start":
        file = (io.BytesIO(content(kind, "NA")), f"in{kind}")
        form = {"model": "echo", "template": TEMPLATE, "null_values": '["NA"]', "file": file}
        error = client.post("/start", data=form, content_type="multipart/form-data").get_json()["error"]
        assert reason(error) == f"Line 2: {EMPTY}."
    else:
        monkeypatch.setitem(SCORED, "null_values", ["NA"])
        messages = by_job(kind, "NA", client, context)
        assert [EMPTY in message for message in messages] == [True, True]


PNG = b"\x89PNG\r\n\x1a\n rest"
PICTURE = {
    "type": "image_url",
    "image_url": {"url": f"data:image/png;base64,{base64.b64encode(PNG).decode()}"},
}


@pytest.mark.parametrize("door", ["pandas", "polars", "pyarrow", "datasets", "rows", "start", "job"])
@pytest.mark.parametrize("cell", [PNG, {"bytes": PNG, "path": None}], ids=["bytes", "struct"])
def test_an_image_is_a_part_of_the_prompt_through_every_door(
    door: str, cell: Any, client: FlaskClient, context: AppContext, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "TEMPLATE", "{cell:image} Which colour?")
    if door == "start":
        (prompt, _) = by_start(".parquet", cell, client)
    elif door == "job":
        (prompt, _) = by_job(".parquet", cell, client, context)
    else:
        by_map(door, cell, server)
        (requests,) = server.files.values()
        prompt = json.loads(requests.splitlines()[0])["body"]["messages"][0]["content"]
    assert prompt == [PICTURE, {"type": "text", "text": " Which colour?"}]


@pytest.mark.parametrize("door", ["start", "job"])
@pytest.mark.parametrize("question", ["<image>Which?", [{"role": "user", "content": "<image>Which?"}]])
def test_the_images_of_a_row_go_with_its_messages(
    door: str, question: Any, client: FlaskClient, context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"n": ["0", "1"], "prompt": [question] * 2, "images": [[{"bytes": PNG, "path": None}]] * 2})
    file = io.BytesIO()
    pq.write_table(table, file)
    monkeypatch.setitem(globals(), "content", lambda *_: file.getvalue())
    monkeypatch.setitem(globals(), "TEMPLATE", None)
    if door == "job":
        monkeypatch.setitem(globals(), "TEMPLATE", "unused")
        (prompt, _) = by_job(".parquet", None, client, context)
    else:
        form = {"model": "echo", "file": (io.BytesIO(file.getvalue()), "in.parquet")}
        started = client.post("/start", data=form, content_type="multipart/form-data").get_json()
        (prompt, _) = prompts_of(client, started["file_id"])
    assert prompt == [PICTURE, {"type": "text", "text": "Which?"}]


@pytest.mark.parametrize(
    ("endpoint", "template", "message"),
    [
        ("/v1/embeddings", "{cell:image}", "Invalid endpoint: /v1/embeddings. Supported values: "),
        ("/v1/completions", "{cell:image}", "Line 1 has messages or images, which /v1/completions does not take"),
        ("/v1/chat/completions", "{cell}", "Row 1: column cell holds binary data, which is no text; in a template"),
        ("/v1/chat/completions", "{n:image}", "Row 1: column n holds a text that is no URL of an image"),
    ],
)
def test_an_image_that_cannot_be_sent_is_refused_with_its_place(
    endpoint: str, template: str, message: str, client: FlaskClient
) -> None:
    file = (io.BytesIO(content(".parquet", PNG)), "in.parquet")
    form = {"model": "echo", "endpoint": endpoint, "template": template, "file": file}
    refused = client.post("/start", data=form, content_type="multipart/form-data")
    assert refused.status_code == 400
    assert refused.get_json()["error"]["message"].startswith(message)
