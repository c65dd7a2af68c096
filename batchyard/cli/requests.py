"""Request files and request options of the command line."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batchyard import durations
from batchyard.errors import ConfigurationError
from batchyard.statuses import ENDPOINTS

if TYPE_CHECKING:
    from batchyard.cli.client import Client

endpoint_option = click.option(
    "--endpoint", type=click.Choice(ENDPOINTS), help="What the lines' `url` says [that of the first line]."
)


class Window(click.ParamType[str]):
    """A duration such as `24h`, as the server takes it."""

    name = "window"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            durations.seconds(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


window_option = click.option(
    "--window", default="24h", show_default=True, type=Window(), help="Completion window: a number and s, m, h or d."
)
post_process_option = click.option(
    "--post-process",
    multiple=True,
    metavar="STEP[:KEY=VALUE,…]",
    help="A step over the finished answers, such as `score` or `score:method=numeric`; may be given several times.",
)


on_invalid_option = click.option(
    "--on-invalid",
    type=click.Choice(("fail", "skip")),
    default="fail",
    show_default=True,
    help="A line that cannot be run fails the batch before anything runs, or is skipped: an error line, the rest runs.",
)


class LocalPath(click.Path):
    """A path; a URL is refused with a hint."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value.startswith(("http://", "https://")):
            self.fail("URLs are not taken: name a local file, and fetch or send it with curl", param, ctx)
        return super().convert(value, param, ctx)


def check_writable(*files: Path | None) -> None:
    """Raise ConfigurationError if a file cannot be written: before the work, not after it."""
    for file in files:
        if file is not None and not os.access(file if file.exists() else file.parent, os.W_OK):
            raise ConfigurationError(f"{file} cannot be written; name a file in a folder that exists and is yours")


def make_folder(folder: Path | None) -> None:
    """Make a folder for files, unless it is None. Raises ConfigurationError if that cannot be."""
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"{folder}: {error.strerror}; name a folder that is yours") from error


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """Return `key=value` texts as a dict. Raises click.UsageError for one without a key or `=`."""
    values = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not key or not separator:
            raise click.UsageError(f"{option} {text}: write KEY=VALUE")
        values[key] = value
    return values


def steps(texts: Iterable[str]) -> list[dict[str, str]]:
    """Return `score:method=numeric` as `{"step": "score", "method": "numeric"}`."""
    parsed = []
    for text in texts:
        name, _, options = text.partition(":")
        parsed.append({"step": name, **pairs(options.split(",") if options else [], "--post-process")})
    return parsed


def endpoint_of(file: Path) -> str:
    """Return the `url` of a request file's first line; chat completions if it has none, and validation reports it."""
    with file.open("rb") as stream:
        for line in stream:
            if line.strip():
                try:
                    url = json.loads(line).get("url")
                except (ValueError, AttributeError):
                    break
                return url if url in ENDPOINTS else ENDPOINTS[0]
    return ENDPOINTS[0]


def with_model(source: Path, model: str, target: Path) -> None:
    """Copy a request file and set every `body.model`. Lines that are no requests stay as they are."""
    with source.open("rb") as lines, target.open("wb") as copy:
        for line in lines:
            try:
                request = json.loads(line)
                request["body"]["model"] = model
            except (ValueError, KeyError, TypeError):
                copy.write(line)
            else:
                copy.write(json.dumps(request, ensure_ascii=False).encode() + b"\n")


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def save(server: Client, file_id: str | None, to: Path) -> None:
    """Write a result file; an empty one if the batch has none."""
    try:
        if file_id is None:
            to.write_bytes(b"")
        else:
            server.download(file_id, to)
    except OSError as error:
        raise ConfigurationError(f"{to}: {error.strerror}; name a file that can be written") from error
