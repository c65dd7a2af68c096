"""Folders with all files of a batch or job, and their check without a server."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from batchyard import json_lines
from batchyard.client.api import ApiClient
from batchyard.endpoints import output_lines
from batchyard.errors import ConfigurationError
from batchyard.statuses import TERMINAL
from batchyard.wording import count, quoted

MANIFEST = "manifest.json"
RECORD = "record.json"
"""The batch or job as the API shows it. Its list of artifacts names the SHA-256 of the manifest."""
INPUT = "input"
_NAME = re.compile(r"[\w][\w.\- ]*")
_BATCH_FILES = ("output.jsonl", "errors.jsonl")


class Mismatch(NamedTuple):
    """What does not fit. `line` counts from 1; None if the whole file is meant."""

    file: str
    line: int | None
    message: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}, line {self.line}"
        return f"{place}: {self.message}"


def download(server: ApiClient, name: str, folder: Path) -> dict[str, Any]:
    """Write all files of an ended batch or job to a new folder, and return its record.

    The input is `input` with the endings of the file that was uploaded; all others have the names of the artifacts.

    Raises:
        ConfigurationError: it has not ended, files of it are gone, or the folder has files already.
        OSError: the folder cannot be written.
    """
    record = server.work(name)
    if record["status"] not in TERMINAL:
        raise ConfigurationError(f"{name} is {record['status']}; download it once it has ended")
    artifacts = {one["name"]: one["file_id"] for one in record["batchyard"]["artifacts"]}
    if MANIFEST not in artifacts:
        raise ConfigurationError(f"{name} is {record['status']} and has no manifest: nothing of it ran")
    for artifact in artifacts:
        if not _NAME.fullmatch(artifact):
            raise ConfigurationError(f"{name} has a file with the name {artifact!r}, which is not safe in a folder")
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ConfigurationError(f"{folder} is not empty; name a new folder")
    if record.get("input_file_id"):
        source = server.find_file(record["input_file_id"])
        if source is None:
            raise ConfigurationError(f"the input of {name} was deleted or has expired: the folder cannot be complete")
        suffixes = "".join(re.findall(r"\.[A-Za-z0-9]+", source["filename"])[-2:])
        server.download(record["input_file_id"], folder / f"{INPUT}{suffixes}")
    for artifact, file_id in artifacts.items():
        server.download(file_id, folder / artifact)
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    return record


def check(folder: Path) -> tuple[dict[str, Any], list[Mismatch]]:
    """Compare the files of a folder with its manifest, and return the manifest and what does not fit.

    Raises ConfigurationError: it is no such folder.
    """
    try:
        raw = (folder / MANIFEST).read_bytes()
    except FileNotFoundError:
        remedy = "`batchyard download BATCH|JOB DIR` makes such a folder"
        raise ConfigurationError(f"{folder} has no {MANIFEST}: {remedy}") from None
    try:
        manifest = json.loads(raw)
        named = dict(_named_files(manifest, folder))
        mismatches = list(_check_record(folder, manifest, hashlib.sha256(raw).hexdigest()))
        for file, expected in named.items():
            mismatches += _check_file(folder / file, expected)
        if "batch_id" in manifest:
            mismatches += _check_lines(folder, manifest, next(iter(named)))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return {}, [Mismatch(MANIFEST, None, f"cannot be read as a manifest ({type(error).__name__}: {error})")]
    known = {MANIFEST, RECORD, *named}
    mismatches += [
        Mismatch(path.name, None, "the manifest has no such file")
        for path in sorted(folder.iterdir())
        if path.name not in known
    ]
    return manifest, mismatches


def _named_files(manifest: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name of each file that the manifest covers, with its hash and size: at first the input."""
    is_batch = "batch_id" in manifest
    given = sorted(path.name for path in folder.glob(f"{INPUT}*"))
    sha256 = manifest["input"]["sha256"] if is_batch else manifest["input_sha256"]
    if sha256 or is_batch:
        yield (given[0] if given else INPUT), {"sha256": sha256}
    artifacts = {one["name"]: one for one in manifest["outputs"]} if is_batch else manifest["artifacts"]
    for name, expected in artifacts.items():
        if not _NAME.fullmatch(name):  # a folder of somebody else's must not make us read other files
            raise ValueError(f"{name!r} is no name of a file in this folder")
        yield name, expected


def _check_record(folder: Path, manifest: Mapping[str, Any], sha256: str) -> Iterator[Mismatch]:
    """Yield what tells the manifest from the one that the server had."""
    try:
        record = json.loads((folder / RECORD).read_bytes())
        expected = {one["name"]: one["sha256"] for one in record["batchyard"]["artifacts"]}[MANIFEST]
    except (OSError, ValueError, LookupError, TypeError) as error:
        yield Mismatch(RECORD, None, f"cannot be read ({type(error).__name__}): nothing says which manifest is right")
        return
    name = manifest.get("batch_id", manifest.get("job"))
    if name != record["id"]:
        yield Mismatch(MANIFEST, None, f"is that of {name}; {RECORD} is that of {record['id']}")
    elif sha256 != expected:
        yield Mismatch(MANIFEST, None, f"has SHA-256 {sha256}; the server had one with {expected}")


def _check_file(path: Path, expected: Mapping[str, Any]) -> Iterator[Mismatch]:
    """Yield what tells a file from the one that the manifest names."""
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        yield Mismatch(path.name, None, f"cannot be read: {error.strerror}")
        return
    size, wanted = path.stat().st_size, expected.get("bytes")
    if sha256 == expected["sha256"]:
        return
    if wanted is not None and size != wanted:
        what = "it is cut off" if size < wanted else "something was added"
        yield Mismatch(path.name, None, f"has {size} bytes, and the manifest {wanted}: {what}")
    else:
        yield Mismatch(path.name, None, f"was changed: it has SHA-256 {sha256}, and the manifest {expected['sha256']}")


def _check_lines(folder: Path, manifest: Mapping[str, Any], source: str) -> Iterator[Mismatch]:
    """Yield the lines of a batch's results that are no JSON, are there twice, or stand out of the input's order."""
    try:
        order: dict[str, int] = {}
        for number, custom_id in _ids(folder / source):
            order.setdefault(custom_id, number)  # a repeated id is an error of the later line
    except (OSError, ValueError):
        return  # an input that was changed is named already
    seen: dict[str, str] = {}
    lines = {one["name"]: one["lines"] for one in manifest["outputs"]}
    for name in _BATCH_FILES:
        last = 0
        try:
            for number, custom_id in _ids(folder / name):
                place = order.get(custom_id)
                if place is None:
                    yield Mismatch(name, number, f"the input has no request {quoted(custom_id)}")
                elif custom_id in seen:
                    yield Mismatch(name, number, f"{quoted(custom_id)} has a second answer; {seen[custom_id]}")
                elif place < last:
                    yield Mismatch(name, number, f"{quoted(custom_id)} stands out of the order of the input")
                last = max(last, place or 0)
                seen.setdefault(custom_id, f"the first is in {name}, line {number}")
        except FileNotFoundError:
            continue
        except _BadLine as error:
            yield Mismatch(name, error.number, "is no line of results")
            continue
        if lines.get(name) is not None and (found := _line_count(folder / name)) != lines[name]:
            yield Mismatch(name, None, f"has {count(found, 'line')}, and the manifest {lines[name]}")
    missing = manifest["counts"]["total"] - len(seen)
    if missing > 0 and len(order) == manifest["counts"]["total"]:
        first = next(custom_id for custom_id in order if custom_id not in seen)
        yield Mismatch(source, order[first], f"{count(missing, 'request')} have no line of results, at first this one")


def _line_count(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


class _BadLine(ValueError):
    def __init__(self, number: int) -> None:
        super().__init__(f"line {number}")
        self.number = number


def _ids(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the custom_id of each line that is a request, or the result of one.

    Raises:
        OSError: it cannot be read.
        ValueError: a line is no JSON object with a custom_id.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                value = json_lines.loads(line)
                if output_lines.invalid_line(value) is None:
                    yield number, str(value["custom_id"])
            except (ValueError, LookupError, TypeError, AttributeError):
                raise _BadLine(number) from None
