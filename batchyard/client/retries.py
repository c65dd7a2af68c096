"""Batches that are asked for again: an earlier one with its retries, and the answers of all as one result."""

import codecs
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from batchyard import json_lines
from batchyard.client import output_files
from batchyard.client.api import ApiClient
from batchyard.client.resume import AGAIN, name_of
from batchyard.endpoints import output_lines
from batchyard.errors import RequestError
from batchyard.statuses import TERMINAL
from batchyard.wording import FLAWS, count

NOTHING = "nothing_to_retry"
"""The server's code where every request has an answer or an error that would come again."""


def take_up(server: ApiClient, batch: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return an earlier batch with its retries, each the retry of the one before; only the last may be unended.

    What failed for a passing reason is asked again: the last one is made here if the one before has such errors.
    Standard error says what is done.
    Return None if a result file of theirs is gone, so that another batch has to compute all of it.
    """
    chain = chain_of(server, batch)
    last = chain[-1]
    needed = [one[key] for one in chain for key in ("output_file_id", "error_file_id")]
    needed += [last["input_file_id"]] if last["error_file_id"] is not None else []
    if any(file_id is not None and server.find_file(file_id) is None for file_id in needed):
        click.echo(f"files of {name_of(batch)} were deleted or have expired: all of it is computed anew", err=True)
        return None
    try:
        if last["status"] in TERMINAL and last["error_file_id"] is not None:
            chain.append(server.retry(last["id"], errors="passing"))
            missing = last["request_counts"]["total"] - last["request_counts"]["completed"]
            remedy = f"batch {chain[-1]['id']} asks again for what may be answered now"
            click.echo(f"{name_of(last)} lacks {count(missing, 'answer')}: {remedy}; {AGAIN}", err=True)
            return chain
    except RequestError as error:
        if error.code != NOTHING:
            raise
    click.echo(f"taking up {name_of(last)}; {AGAIN}", err=True)
    return chain


def chain_of(server: ApiClient, batch: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a batch with its retries, each the newest of the one before; without those that failed validation."""
    chain = [batch]
    while True:
        retries = map(server.batch, reversed(chain[-1]["batchyard"]["retries"]))
        newest = next((retry for retry in retries if retry["status"] != "failed"), None)
        if newest is None:
            break
        chain.append(newest)
    return chain[1:] if batch["status"] == "failed" and len(chain) > 1 else chain


def counts(chain: list[dict[str, Any]]) -> dict[str, int]:
    """Return the requests of the first batch, and how many have an answer in it or in one of its retries."""
    total = chain[0]["request_counts"]["total"]
    completed = sum(batch["request_counts"]["completed"] for batch in chain)
    flaws = {name: sum(batch["batchyard"].get(name, 0) for batch in chain) for name in FLAWS}
    return {"total": total, "completed": completed, "failed": total - completed, **flaws}


def write(server: ApiClient, chain: list[dict[str, Any]], output: Path, errors: Path | None) -> None:
    """Write the answers of a batch and its retries to `output` and what has none to `errors`, in input order.

    Both appear whole or not at all. Raises OSError.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="batchyard-")))
        answers = stack.enter_context(output_files.written(output))
        others = stack.enter_context(output_files.written(errors)) if errors else folder / "errors.jsonl"
        scratch = folder / "lines.jsonl"
        index: dict[str | int, tuple[int, bool]] = {}
        with scratch.open("w+b") as lines:
            for batch in chain:
                for key, is_answer in (("error_file_id", False), ("output_file_id", True)):
                    for line in server.lines(batch[key]) if batch[key] is not None else ():
                        answer = json.loads(line)
                        invalid = output_lines.invalid_line(
                            answer
                        )  # one without a custom_id has the number of its line
                        index[answer["custom_id"] if invalid is None else invalid] = (lines.tell(), is_answer)
                        lines.write(line + b"\n")
            with answers.open("wb") as answered, others.open("wb") as failed:
                for position, is_answer in _in_input_order(server, chain[0]["input_file_id"], index):
                    lines.seek(position)
                    (answered if is_answer else failed).write(lines.readline())


def _in_input_order(
    server: ApiClient, file_id: str, index: Mapping[str | int, tuple[int, bool]]
) -> Iterator[tuple[int, bool]]:
    """Yield the values of `index` as the lines of the input stand; as they were found if the input is gone."""
    if server.find_file(file_id) is None:
        yield from index.values()
        return
    rest = {key: value for key, value in index.items() if isinstance(key, str)}
    for number, line in enumerate(server.lines(file_id), 1):
        if json_lines.is_blank(line):
            continue
        custom_id = _readable_id(line)
        is_corrected = number in index and rest.get(custom_id, (0, False))[1]
        if number in index and not is_corrected:
            yield index[number]
        elif custom_id in index:
            rest.pop(custom_id, None)
            yield index[custom_id]
    yield from rest.values()  # of corrected lines with another custom_id


def _readable_id(line: bytes) -> str:
    try:
        request = json.loads(line.removeprefix(codecs.BOM_UTF8))
    except (ValueError, RecursionError):
        return ""
    return str(request.get("custom_id") or "") if isinstance(request, dict) else ""
