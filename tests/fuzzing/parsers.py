"""Every parser that a stranger reaches: what it is given, and what must hold whatever that is.

`python -m tests.fuzzing MINUTES [PARSER …]` fuzzes each so long. `make test-all` gives each a minute.
"""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import aiohttp
import pyarrow as pa
import pyarrow.parquet as pq
from aiohttp.base_protocol import BaseProtocol
from aiohttp.test_utils import make_mocked_request
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from batchyard import cron, durations, json_lines
from batchyard.errors import RequestError
from batchyard.request_lines import lines
from batchyard.request_lines.inline import InlineBody
from batchyard.request_lines.lines import LineError
from batchyard.tables.cells import CellError
from batchyard.tables.formats import TableError
from batchyard.tables.reading import rows
from batchyard.tables.template import Template, TemplateError
from batchyard.telemetry import traceparents
from inference.engines.openai.client import EndpointClient, NoReply
from webapp.gateway.forms import audio_body

MAX_LINE_BYTES = 4096
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
"""Values of JSON, and what Python writes that is none: NaN and Infinity."""


class Parser(NamedTuple):
    """A parser, by what it takes.

    Attributes:
        inputs: what it is given.
        check: raises for an error that callers do not expect, or for a result that is wrong.
    """

    inputs: st.SearchStrategy[Any]
    check: Callable[[Any], None]


def _spliced(pieces: list[bytes]) -> st.SearchStrategy[bytes]:
    """Return byte strings made of the tokens of a format, with other bytes between them."""
    return st.lists(st.sampled_from(pieces) | st.binary(max_size=6), max_size=24).map(b"".join)


@st.composite
def _damaged(draw: st.DrawFn, sound: st.SearchStrategy[bytes]) -> bytes:
    """Return sound bytes of which some are cut, replaced or repeated."""
    content = draw(sound)
    for _ in range(draw(st.integers(0, 4))):
        begin = draw(st.integers(0, len(content)))
        end = draw(st.integers(begin, min(begin + 40, len(content))))
        content = content[:begin] + draw(st.binary(max_size=8) | st.just(content[begin:end] * 2)) + content[end:]
    return content


def _written(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")


JSON_TOKENS = [b'{"', b'":', b"{", b"}", b"[", b"]", b",", b'"body"', b'"requests"', b"\\u003a", b"\\ud83d", b"1e999"]
JSON_TEXTS = _damaged(JSON.map(_written)) | _spliced(JSON_TOKENS) | st.integers(1, 600).map(lambda n: b"[" * n)


def check_line(raw: bytes) -> None:
    try:
        request, body = lines.parse_with_body(1, raw, MAX_LINE_BYTES)
    except LineError as error:
        assert error.message.endswith(".") and "Traceback" not in error.message
        lines.custom_id(raw)
        return
    assert json_lines.loads(body) == request.get("body")


def check_inline(raw: bytes) -> None:
    body = InlineBody(io.BytesIO(raw), max_requests=5, max_request_bytes=MAX_LINE_BYTES, max_rest_bytes=MAX_LINE_BYTES)
    try:
        for line in body.lines(lambda _, request: request):
            assert line.endswith(b"}\n") and line.count(b"\n") == 1
    except RequestError as error:
        assert error.message.endswith(".")


CSV_TOKENS = [
    b",",
    b";",
    b"\t",
    b'"',
    b"\n",
    b"\r\n",
    b"\r",
    b"a",
    b"b",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\x00",
    b"---\n",
]
TEXT_TABLES = st.tuples(
    st.sampled_from(["txt", "prompts", "jsonl", "csv", "tsv"]),
    _spliced(CSV_TOKENS) | st.lists(JSON_TEXTS).map(b"\n".join),
)


def check_table(given: tuple[Any, bytes]) -> None:
    kind, content = given
    last = 0
    try:
        for row in rows(io.BytesIO(content), kind, max_line_bytes=64):
            assert row.line >= last and not (row.problem and row.values)
            last = row.line
            assert all(isinstance(name, str) for name in row.values)
    except TableError as error:
        assert error.message


COLUMNS = {
    pa.string(): st.text(max_size=8),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(),
    pa.binary(): st.binary(max_size=8),
    pa.bool_(): st.booleans(),
    pa.list_(pa.string()): st.lists(st.text(max_size=4), max_size=3),
    pa.dictionary(pa.int32(), pa.string()): st.sampled_from(["red", "green"]),
    pa.timestamp("us", "Europe/Berlin"): st.integers(0, 2**40),
    pa.decimal128(20, 3): st.decimals(-(10**6), 10**6, places=3),
}


@st.composite
def _parquet(draw: st.DrawFn) -> bytes:
    kinds = draw(st.lists(st.sampled_from(list(COLUMNS)), max_size=4))
    count = draw(st.integers(0, 5))
    columns = {
        f"c{number}": pa.array(draw(st.lists(COLUMNS[kind] | st.none(), min_size=count, max_size=count)), kind)
        for number, kind in enumerate(kinds)
    }
    written = io.BytesIO()
    codec = draw(st.sampled_from(["none", "snappy", "zstd"]))
    pq.write_table(pa.table(columns), written, compression=codec, row_group_size=draw(st.integers(1, 5)))
    return written.getvalue()


def check_parquet(content: bytes) -> None:
    try:
        for row in rows(io.BytesIO(content), "parquet", max_line_bytes=64, max_bytes=2**20):
            assert not (row.problem and row.values)
    except TableError as error:
        assert error.message


TEMPLATES = st.lists(
    st.sampled_from(["{", "}", "{{", "}}", "{a}", "{b:image}", "{*}", '{*["a"]}', "a", "%s"]) | st.text(max_size=5)
)


def check_template(given: tuple[str, str]) -> None:
    text, cell = given
    try:
        template = Template(text)
        names = [name for name in template.columns if name not in template.images]
        template.check(template.columns)
        row = dict.fromkeys([*template.columns, *(template.order or ())], cell)
        filled = template.ordered([row]).fill(row)
    except (TemplateError, CellError) as error:
        assert str(error)
        return
    if isinstance(filled, str) and names:
        assert cell in filled, "a cell stands in the prompt as it is, and nothing in it is a template"


FORM = {"Content-Type": "multipart/form-data; boundary=x"}
FORM_TOKENS = [
    b"--x",
    b"--x--",
    b"\r\n",
    b"Content-Disposition: form-data; name=",
    b'"file"',
    b'; filename="a"',
    b"\r\n\r\n",
    b"Content-Transfer-Encoding: base64",
    b"Content-Length: 99",
]


def check_form(content: bytes) -> None:
    async def read() -> None:
        request = make_mocked_request("POST", "/v1/audio/transcriptions", headers=FORM)
        json.dumps(await audio_body(request, content))

    try:
        asyncio.run(asyncio.wait_for(read(), 60))
    except RequestError as error:
        assert error.message.endswith(".")


EVENT_TOKENS = [
    b"data: ",
    b"data:",
    b"event: message",
    b": comment",
    b"\n",
    b"\r\n",
    b"\n\n",
    b"[DONE]",
    b'{"choices": []}',
    b"\xef\xbb\xbf",
]


def check_events(content: bytes) -> None:
    async def read() -> list[bytes]:
        loop = asyncio.get_running_loop()
        stream = aiohttp.StreamReader(BaseProtocol(loop), 2**16, loop=loop)
        stream.feed_data(content)
        stream.feed_eof()
        response = cast(aiohttp.ClientResponse, SimpleNamespace(content=stream))
        return [event async for event in EndpointClient.events(response)]

    try:
        events = asyncio.run(read())
    except NoReply:
        return
    assert all(event.strip() for event in events)


HEADERS = st.from_regex(r"[0-9a-f]{0,2}-?[0-9a-f]{0,33}-?[0-9a-f]{0,17}-?[0-9a-f]{0,3}.?", fullmatch=True) | st.text(
    max_size=60
)


def check_traceparent(header: str) -> None:
    parent = traceparents.of_header(header)
    assert parent is None or traceparents.of_header(str(parent)) == parent


CRON = st.lists(st.from_regex(r"[0-9*/,\-LW]{0,6}|[A-Z]{3}", fullmatch=True), min_size=4, max_size=6).map(" ".join)


def check_cron(given: tuple[str, str]) -> None:
    try:
        parsed = cron.parse(*given)
    except RequestError as error:
        assert error.message
        return
    following = parsed.next(1_800_000_000)
    assert following is None or following > 1_800_000_000


def check_duration(text: str) -> None:
    try:
        seconds = durations.seconds(text)
    except ValueError as error:
        assert "such as '24h'" in str(error)
        return
    assert seconds > 0


PARSERS = {
    "lines": Parser(JSON_TEXTS, check_line),
    "inline requests": Parser(JSON_TEXTS, check_inline),
    "tables of text": Parser(TEXT_TABLES, check_table),
    "Parquet": Parser(_damaged(_parquet()) | _parquet(), check_parquet),
    "templates": Parser(st.tuples(TEMPLATES.map("".join), st.text(max_size=8)), check_template),
    "forms": Parser(_spliced(FORM_TOKENS), check_form),
    "events": Parser(_spliced(EVENT_TOKENS), check_events),
    "traceparent": Parser(HEADERS, check_traceparent),
    "cron": Parser(
        st.tuples(CRON, st.sampled_from(["UTC", "Europe/Berlin", "Mars/Phobos"]) | st.text(max_size=12)), check_cron
    ),
    "durations": Parser(
        st.from_regex(r"[0-9.]{0,20}[a-z ]{0,3}", fullmatch=True) | st.text(max_size=10), check_duration
    ),
}


def fuzz(name: str, seconds: float) -> int:
    """Check a parser with new inputs for so long, and return how many there were.

    Raises as its check does, with the input.
    """
    parser, count, deadline = PARSERS[name], 0, time.monotonic() + seconds

    @seed(time.time_ns())
    @settings(settings.get_profile("random"), max_examples=1000, database=None)
    @given(parser.inputs)
    def check(value: Any) -> None:
        nonlocal count
        count += 1
        if time.monotonic() < deadline:
            parser.check(value)

    while time.monotonic() < deadline:
        check()
    return count
