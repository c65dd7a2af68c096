"""GET /v1/batches/{id}/results: the answers so far, in the order of their completion."""

from __future__ import annotations

import io
import json
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from tests.contract.conftest import MIXED, refusal
from tests.support.rows import until
from tests.support.stacks import RunningStack, a_chat


def test_the_lines_are_those_of_the_files(stack: RunningStack, http: httpx.Client, mixed: Any) -> None:
    answer = http.get(f"/v1/batches/{mixed.id}/results")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/jsonl")
    files = [stack.client.files.content(name).text for name in (mixed.output_file_id, mixed.error_file_id)]
    assert sorted(answer.text.splitlines()) == sorted("".join(files).splitlines())


def test_a_line_says_how_long_its_request_took_if_the_client_wants_to_know(
    stack: RunningStack, http: httpx.Client
) -> None:
    batch = stack.wait(stack.submit([a_chat("a", "x", model="slow")]))
    (bare,), (timed,) = (
        [json.loads(line) for line in http.get(f"/v1/batches/{batch.id}/results{query}").text.splitlines()]
        for query in ("", "?seconds=true")
    )
    assert 0.19 <= timed.pop("batchyard").pop("seconds") < 10
    assert timed == bare


def test_reasoning_and_its_tokens_reach_the_client_from_the_engine(stack: RunningStack) -> None:
    lines = [a_chat("thinks", "<think>one and two</think> three"), a_chat("does not", "four")]
    batch = stack.wait(stack.submit(lines, extra_body={"post_process": [{"step": "parquet"}]}))
    bodies = {line["custom_id"]: line["response"]["body"] for line in stack.lines(batch.output_file_id)}
    message = bodies["thinks"]["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("one and two", "three")
    assert bodies["thinks"]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}
    assert "completion_tokens_details" not in bodies["does not"]["usage"], "the engine has said nothing"
    assert batch.usage.output_tokens_details.reasoning_tokens == 3
    table = pq.read_table(io.BytesIO(stack.artifact(batch, "results.parquet"))).to_pylist()
    assert [(row["reasoning"], row["reasoning_tokens"]) for row in table] == [("one and two", 3), (None, None)]


def test_a_reader_goes_on_where_it_was_cut_off(http: httpx.Client, mixed: Any) -> None:
    whole = http.get(f"/v1/batches/{mixed.id}/results").text.splitlines()
    assert len(whole) == MIXED
    read: list[str] = []
    while lines := http.get(f"/v1/batches/{mixed.id}/results", params={"after": len(read), "limit": 7}).text:
        read += lines.splitlines()
    assert read == whole


def test_answers_are_there_while_the_batch_runs(stack: RunningStack, http: httpx.Client) -> None:
    requests = [a_chat(f"id-{number}", "x", model="slow") for number in range(40)]
    batch = stack.submit([*requests, *(a_chat(f"holds-{number}", "x", model="endless") for number in range(30))])
    read: list[str] = []

    def more() -> list[str]:
        read.extend(http.get(f"/v1/batches/{batch.id}/results", params={"after": len(read)}).text.splitlines())
        return [json.loads(line)["custom_id"] for line in read]

    until(lambda: len(more()) >= 40)
    assert stack.client.batches.retrieve(batch.id).status == "in_progress"
    stack.client.batches.cancel(batch.id)
    stack.wait(batch)
    assert sorted(more()) == sorted(request["custom_id"] for request in requests)


@pytest.mark.parametrize(
    "query", ["after=-1", "after=x", f"after={MIXED + 1}", "limit=0", "after=99999999999999999999"]
)
def test_lines_that_are_not_there_are_refused(http: httpx.Client, mixed: Any, query: str) -> None:
    answer = http.get(f"/v1/batches/{mixed.id}/results?{query}")
    assert (answer.status_code, refusal(answer)["param"]) == (400, query.partition("=")[0])


def test_a_batch_that_has_not_begun_has_no_lines(stack: RunningStack, http: httpx.Client) -> None:
    batch = stack.wait(stack.submit("{nope}"))
    assert http.get(f"/v1/batches/{batch.id}/results").text == ""
