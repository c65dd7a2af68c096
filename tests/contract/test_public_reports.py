"""Faults that users of similar systems have reported: what each of those requests and commands gets here.

`public_reports.md` has all that were tried, with the right value of each. A case's id names its report.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.rows import until
from tests.support.stacks import RunningStack

USER = {"role": "user", "content": "hi"}
CHAT = {"model": "echo", "messages": [USER]}
CHATS = "/v1/chat/completions"
MARK = b"\xef\xbb\xbf"
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "x"}
BATCH = {"input_file_id": "file-none", "endpoint": CHATS, "completion_window": "24h"}


def chat(**parameters: Any) -> bytes:
    return json.dumps(CHAT | parameters).encode()


def chat_about(text: bytes) -> bytes:
    """A chat whose message is this JSON text, as it stands here."""
    return chat().replace(b'"hi"', b'"' + text + b'"')


def send(
    stack: RunningStack, method: str, path: str, body: bytes = b"", headers: dict[str, str | bytes] | None = None
) -> tuple[int, str, http.client.HTTPMessage]:
    """Send a request as it stands here, which no client would do. Returns status, body and headers."""
    connection = http.client.HTTPConnection(urlsplit(stack.url).netloc, timeout=300)
    sent: dict[str, str | bytes] = {"Authorization": f"Bearer {stack.key}", "Content-Length": str(len(body))}
    connection.putrequest(method, path)
    for name, value in (sent | (headers or {})).items():
        connection.putheader(name, value)
    connection.endheaders(body)
    response = connection.getresponse()
    return response.status, response.read().decode(), response.headers


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "part"),
    [
        pytest.param("POST", CHATS, MARK + chat(), 200, '"hi"', id="ragflow#19179: a chat after a byte order mark"),
        pytest.param("POST", "/v1/keys", MARK + b'{"project": "bom"}', 200, '"bom"', id="cjio#21: any body after one"),
        pytest.param(
            "POST", "/v1/batches", MARK + json.dumps(BATCH).encode(), 200, '"batch"', id="duckdb#16568: a batch"
        ),
        pytest.param("POST", CHATS, chat_about(b"\\ud83d"), 400, "surrogate", id="colibri#1589: half an emoji"),
        pytest.param(
            "POST", CHATS, chat(stream=True).replace(b"hi", b"\\ud83d"), 400, "surrogate", id="Rapid-MLX#730: streamed"
        ),
        pytest.param(
            "POST", CHATS, b'{"x":' + b"[" * 20000 + b"]" * 20000 + b"}", 400, "depth", id="ds4#43: deep nesting"
        ),
        pytest.param(
            "POST", "/v1/keys", b"[" * 20000 + b"]" * 20000, 400, "depth", id="technocore-chat#130: in any body"
        ),
        pytest.param("POST", CHATS, chat().replace(b'"hi"', b"NaN"), 400, "NaN", id="chainerui#16: NaN is no JSON"),
        pytest.param(
            "POST", CHATS, b'{"model": "no",' + chat()[1:], 400, "repeated", id="json#762: a key that is repeated"
        ),
        pytest.param("HEAD", "/readyz", b"", 200, "", id="arcadedb#8133: a probe that asks with HEAD"),
        pytest.param(
            "POST", f"{CHATS}/", chat(), 200, '"hi"', id="GinkGO#5389: a slash at the end, without a redirect"
        ),
        pytest.param("GET", "/v1/models/", b"", 200, '"echo"', id="opa#2137: of any path"),
        pytest.param(
            "POST", "/v1//chat/completions", chat(), 200, '"hi"', id="librefang#3498: a base URL that ends in a slash"
        ),
        pytest.param("POST", "//v1/messages", chat(max_tokens=9), 200, '"hi"', id="litellm#8350: without its /v1"),
        pytest.param("GET", "//v1//models?limit=1", b"", 200, '"echo"', id="cline#12532: of any path"),
        pytest.param(
            "GET", "http://other.example/v1/models", b"", 200, '"echo"', id="gateway#816: a whole URL as target"
        ),
        pytest.param(
            "GET", "/v1/models/org%2Fnone", b"", 404, "org/none", id="ollama#10139: a model's name with a slash"
        ),
        pytest.param("GET", "/v1/batches?limit=%D9%A5", b"", 400, "limit", id="python-stdnum#96: a digit of Arabic"),
        pytest.param("GET", "/v1/batches?limit=%C2%B2", b"", 400, "limit", id="typo#1: a superscript"),
        pytest.param("GET", "/v1/batches?after=batch_none", b"", 400, "after", id="Cogtrix#313: a cursor of nothing"),
        pytest.param(
            "POST", "/v1/batches/batch_none/cancel", b"", 404, "batch_none", id="a2a-java#759: a POST without a body"
        ),
    ],
)
def test_a_request_gets_its_answer_or_the_reason_of_its_refusal(
    stack: RunningStack, method: str, path: str, body: bytes, status: int, part: str
) -> None:
    answers: list[tuple[int, str, http.client.HTTPMessage]] = []

    def answered() -> bool:
        answers.append(send(stack, method, path, body, {"Content-Type": "application/json"}))
        return answers[-1][0] == status or path != "/readyz"  # for which a worker has a second to answer

    until(answered)
    got, text, headers = answers[-1]
    assert (got, part in text) == (status, True), text
    assert headers.get_content_type() == "application/json"


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"Authorization": "bearer {key}"}, id="console#7374: the scheme in small letters"),
        pytest.param({"User-Agent": b"Orange Espa\xf1a"}, id="aiohttp#1731: a header in Latin-1"),
        pytest.param({"X-Session-Id": b"caf\xe9"}, id="aiohttp#3279: one that is read here"),
        pytest.param({"X-User": "天".encode()}, id="litellm#34633: one in UTF-8"),
        pytest.param({"Content-Type": "application/json; charset=utf-8"}, id="cacherpc#118: a charset"),
        pytest.param({"Content-Type": "application/x-www-form-urlencoded"}, id="meilisearch#1587: what curl -d says"),
        pytest.param({"Expect": "100-continue"}, id="cpp-httplib#349: a client that waits for 100"),
        pytest.param({"Connection": "Upgrade", "Upgrade": "h2c"}, id="uvicorn#1501: an upgrade that is offered"),
    ],
)
def test_a_header_in_an_unusual_form_changes_nothing(stack: RunningStack, headers: dict[str, str | bytes]) -> None:
    filled = {name: value.format(key=stack.key) if isinstance(value, str) else value for name, value in headers.items()}
    for method, path, body in (("POST", CHATS, chat()), ("GET", "/v1/models", b"")):
        status, text, _ = send(stack, method, path, body, filled)
        assert (status, "echo" in text) == (200, True), text


def test_a_body_in_pieces_beside_an_offered_upgrade_is_read(stack: RunningStack) -> None:  # uvicorn#2722
    connection = http.client.HTTPConnection(urlsplit(stack.url).netloc, timeout=300)
    headers = {"Authorization": f"Bearer {stack.key}", "Connection": "Upgrade", "Upgrade": "h2c"}
    headers["Transfer-Encoding"] = "chunked"
    connection.request("POST", CHATS, iter([chat()[:9], chat()[9:]]), headers, encode_chunked=True)
    assert json.load(connection.getresponse())["choices"][0]["message"]["content"] == "hi"


@pytest.mark.parametrize("path", [CHATS, "/v1/models"])
def test_a_key_of_bytes_that_are_no_text_is_a_wrong_key(stack: RunningStack, path: str) -> None:  # aiohttp#7715
    status, text, _ = send(
        stack, "POST" if path == CHATS else "GET", path, headers={"Authorization": b"Bearer \xff\xfe"}
    )
    assert (status, json.loads(text)["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    ("messages", "status"),
    [
        pytest.param([USER, CALLING, RESULT], 200, id="lmstudio-bug-tracker#261: content is null beside calls"),
        pytest.param([USER, CALLING | {"content": ""}, RESULT], 200, id="req_llm#966: it is empty beside calls"),
        pytest.param([USER, {"role": "assistant", "content": ""}, USER], 200, id="vllm#21089: an empty answer before"),
        pytest.param([{"role": "developer", "content": "be brief"}, USER], 200, id="halogen-server#3: a developer"),
        pytest.param(
            [CALLING | {"refusal": None, "annotations": [], "audio": None}], 200, id="simple-openai#212: nulls"
        ),
        pytest.param(
            [USER, {**CALLING, "tool_calls": [CALL | {"function": {"name": "f", "arguments": {}}}]}],
            400,
            id="sglang#28035: arguments that are no text",
        ),
    ],
)
def test_a_history_is_taken_as_openai_takes_it(http: httpx.Client, messages: list[Any], status: int) -> None:
    assert http.post(CHATS, json=CHAT | {"messages": messages}).status_code == status


def test_null_parameters_count_as_absent(http: httpx.Client) -> None:  # basyx-pdf-to-aas#8, astonish#152
    nulls = dict.fromkeys(("temperature", "max_tokens", "stop", "n", "tools", "stream", "stream_options", "logit_bias"))
    tools = [{"type": "function", "function": {"name": "f", "parameters": None}}]
    for parameters in (nulls, {"tools": tools}):
        assert http.post(CHATS, json=CHAT | parameters).status_code == 200


def test_the_pieces_of_two_streamed_answers_have_their_index_and_no_proxy_waits_for_more(http: httpx.Client) -> None:
    """Reports: litellm#3276, foundry-local#263, atc#139."""
    answer = http.post(CHATS, json=CHAT | {"n": 2, "stream": True, "stream_options": {"include_usage": True}})
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    texts = {0: "", 1: ""}
    for choice in (choice for event in events for choice in event["choices"]):
        texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == {0: "hi", 1: "hi"}
    assert [event["usage"]["completion_tokens"] for event in events if event.get("usage")] == [2]
    assert answer.headers["x-accel-buffering"] == "no"


def test_a_stream_for_a_client_of_http_1_0_has_no_chunks(stack: RunningStack) -> None:  # dusty#143
    body = chat(stream=True)
    head = f"POST {CHATS} HTTP/1.0\r\nAuthorization: Bearer {stack.key}\r\nContent-Length: {len(body)}\r\n\r\n"
    parts = urlsplit(stack.url)
    with socket.create_connection((parts.hostname, parts.port or 80), timeout=300) as connection:
        connection.sendall(head.encode() + body)
        answer = connection.makefile("rb").read()
    headers, _, events = answer.partition(b"\r\n\r\n")
    assert headers.startswith(b"HTTP/1.0 200")
    assert b"transfer-encoding" not in headers.lower()
    assert (events[:6], events[-14:]) == (b"data: ", b"data: [DONE]\n\n")


def test_vectors_are_numbers_or_base64_as_asked_for(http: httpx.Client) -> None:  # LocalAI#9135, openai-node#2150
    def vector(encoding: str) -> Any:
        body = {"model": "vectors", "input": "a", "encoding_format": encoding}
        return http.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]

    assert [type(vector(encoding)) for encoding in ("float", "base64")] == [list, str]


@pytest.mark.parametrize("name", ["répörté.jsonl", "天狗.jsonl", "a\nb.jsonl", '"; x=".jsonl', "天"])
def test_a_file_comes_back_under_any_name(http: httpx.Client, name: str) -> None:
    """Reports: paperclip#7493, paseo#1477, daytona#4331."""
    part = f"form-data; name=\"file\"; filename*=utf-8''{httpx.QueryParams({'n': name})}".replace("''n=", "''")
    lines = ["--X", 'Content-Disposition: form-data; name="purpose"', "", "user_data"]
    lines += ["--X", f"Content-Disposition: {part.replace('+', '%20')}", "", "x", "--X--", ""]
    form = {"Content-Type": "multipart/form-data; boundary=X"}
    file = http.post("/v1/files", headers=form, content="\r\n".join(lines)).json()
    answer = http.get(f"/v1/files/{file['id']}/content")
    assert (answer.status_code, answer.text) == (200, "x")
    assert answer.headers["content-disposition"].isascii()
    # A range is not taken, and not said to be: the answer is whole (Dormice#86).
    assert http.get(f"/v1/files/{file['id']}/content", headers={"Range": "bytes=1-"}).status_code == 200


@pytest.mark.parametrize(
    ("kind", "form", "reason"),
    [
        (
            "multipart/form-data; boundary=X",
            b'--X\r\nContent-Disposition: form-data; name="f\xe9"\r\n\r\nx\r\n--X--',
            "UTF-8",
        ),
        ("multipart/form-data", b"--X", "boundary"),
    ],
)
def test_a_form_that_cannot_be_read_is_said_to_be(http: httpx.Client, kind: str, form: bytes, reason: str) -> None:
    """Reports: jersey#760 (no boundary), requests#4652 (names in another encoding)."""
    answer = http.post("/v1/files", headers={"Content-Type": kind}, content=form)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_form")
    assert reason in answer.json()["error"]["message"]


def test_too_many_entries_are_the_reason_that_is_given(http: httpx.Client) -> None:
    answer = http.post("/v1/batches", json=BATCH | {"metadata": {str(number): "" for number in range(17)}})
    assert "is not an object of at most 16 entries, or null" in answer.json()["error"]["message"]


BATCHYARD = str(Path(sys.executable).parent / "batchyard")


def run(stack: RunningStack, command: str, **environment: str) -> tuple[int, str, str]:
    """Run a command line of a shell, in which $BY is the program. Returns exit code, output and complaints."""
    ours = {"BY": BATCHYARD, "BATCHYARD_URL": stack.url, "BATCHYARD_API_KEY": stack.key}
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], env=os.environ | ours | environment, capture_output=True, timeout=300
    )
    return ended.returncode, ended.stdout.decode(errors="replace"), ended.stderr.decode(errors="replace")


@pytest.mark.parametrize(
    ("command", "environment", "output"),
    [
        pytest.param("$BY list | head -1", {}, "batch", id="B2_Command_Line_Tool#1071: a reader that has enough"),
        pytest.param(
            "$BY chat -m echo café漢",
            {"PYTHONIOENCODING": "latin-1"},
            "\\u6f22",
            id="pythonlings#73: a locale without the letters",
        ),
        pytest.param("$BY chat -m echo hi <&-", {}, "hi", id="apport#641: no standard input"),
        pytest.param("$BY list >&-", {}, "", id="daps#53: no standard output"),
        pytest.param("$BY chat -m echo -- -5", {}, "-5", id="click#1624: a question with a dash"),
        pytest.param(
            "$BY chat -m echo $'\\e[2J\\u202e'",
            {},
            "\ufffd[2J\ufffd",
            id="mdk#586: an answer that commands the terminal",
        ),
        pytest.param("$BY models", {"LC_ALL": "tr_TR.UTF-8"}, "echo", id="langchain4j#5777: a Turkish locale"),
        pytest.param(
            'BATCHYARD_API_KEY="$BATCHYARD_API_KEY\n" $BY models',
            {},
            "echo",
            id="celeste-python#116: a key and its line feed",
        ),
        pytest.param(
            'BATCHYARD_URL=" $BATCHYARD_URL/v1/ " $BY models',
            {},
            "echo",
            id="aichat#767: a URL and what was copied with it",
        ),
    ],
)
def test_a_command_does_its_work(stack: RunningStack, command: str, environment: dict[str, str], output: str) -> None:
    code, out, err = run(stack, command, **environment)
    assert code in (0, 141), err  # 141: a pipe that its reader has closed
    assert output in out
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        pytest.param(
            "BATCHYARD_API_KEY=“by-1-2” $BY models",
            "BATCHYARD_API_KEY has a character",
            id="devlake#7132: a key in quotes",
        ),
        pytest.param(
            "BATCHYARD_URL=localhost:1 $BY models",
            "such as http://localhost:1",
            id="posting#225: a URL without a scheme",
        ),
        pytest.param("$BY chat -m echo $'caf\\xe9'", "write it as UTF-8", id="kimi-cli#994: bytes that are no text"),
    ],
)
def test_a_command_says_what_is_wrong_with_its_input(stack: RunningStack, command: str, reason: str) -> None:
    code, _, err = run(stack, command)
    assert code == 2
    assert reason in err
    assert "Traceback" not in err
