"""Folders with all files of a batch or job, and their check without a server."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from batchyard import json_lines
from batchyard.client.api import ApiClient
from batchyard.endpoints import output_lines
from batchyard.errors import ConfigurationError, NotFoundError
from batchyard.signatures import EARLIER, ENVELOPE, INPUT, MANIFEST, covered_files, problem
from batchyard.statuses import TERMINAL
from batchyard.wording import count, quoted

RECORD = "record.json"
"""The id, the SHA-256 of manifest and signature, and the files of earlier manifests. It has nothing unchecked."""
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
    """
    record = server.work(name)
    if record["status"] not in TERMINAL:
        raise ConfigurationError(f"{name} is {record['status']}; download it once it has ended")
    artifacts = {one["name"]: one for one in record["batchyard"]["artifacts"]}
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
    for artifact, one in artifacts.items():
        server.download(one["file_id"], folder / artifact)
    hashes = {artifact: artifacts[artifact]["sha256"] for artifact in (MANIFEST, ENVELOPE) if artifact in artifacts}
    earlier, left = list[str](), [MANIFEST]
    while left:
        for file, one in _earlier(json.loads((folder / left.pop()).read_bytes())):
            with suppress(NotFoundError):  # it was deleted or has expired
                if file not in earlier:
                    server.download(one["file_id"], folder / file)
                    earlier.append(file)
                    left.append(file)
    written = {"id": record["id"], "sha256": hashes, "earlier": earlier}
    (folder / RECORD).write_text(json.dumps(written, indent=2) + "\n")
    return record


def _earlier(manifest: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the file of each manifest that another one names, and its SHA-256. A job may have several, if amended."""
    for name, one in manifest.get(EARLIER, {}).items():
        if one is not None:
            yield _safe(f"{name}.{one['sha256'][:8]}.{MANIFEST}"), one


def _safe(name: str) -> str:
    if not _NAME.fullmatch(name):  # a folder of somebody else's must not make us read other files
        raise ValueError(f"{name!r} is no name of a file in this folder")
    return name


def check(folder: Path, keys: Sequence[Ed25519PublicKey] = ()) -> tuple[dict[str, Any], list[Mismatch], list[str]]:
    """Compare the files of a folder with its manifest, and return the manifest and what does not fit.

    The last list has the earlier manifests that are not in the folder. `keys`: one of these must have signed the
    manifest.
    """
    absent = list[str]()
    try:
        raw = (folder / MANIFEST).read_bytes()
    except FileNotFoundError:
        remedy = "`batchyard download BATCH|JOB DIR` makes such a folder"
        raise ConfigurationError(f"{folder} has no {MANIFEST}: {remedy}") from None
    try:
        manifest = json.loads(raw)
        given = sorted(path.name for path in folder.glob(f"{INPUT}*"))
        named = {  # at first the input
            given[0] if name == INPUT and given else _safe(name): one for name, one in covered_files(manifest)
        }
        mismatches = list(_check_record(folder, manifest, hashlib.sha256(raw).hexdigest()))
        if keys:
            signature = folder / ENVELOPE
            missing = "is not there: the manifest is not signed"
            wrong = problem(signature.read_bytes(), raw, keys) if signature.exists() else missing
            mismatches += [] if wrong is None else [Mismatch(ENVELOPE, None, wrong)]
        for file, expected in named.items():
            mismatches += _check_file(folder / file, expected)
        known, left = {MANIFEST, ENVELOPE, RECORD, *named}, [manifest]
        while left:
            for file, expected in _earlier(left.pop()):
                if file in known:
                    continue
                known.add(file)
                if not (folder / file).exists():  # if `download` has had it, the record says so
                    absent.append(file)
                elif unequal := list(_check_file(folder / file, expected)):
                    mismatches += unequal
                else:
                    left.append(json.loads((folder / file).read_bytes()))
        if "batch_id" in manifest:
            mismatches += _check_lines(folder, manifest, next(iter(named)))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return {}, [Mismatch(MANIFEST, None, f"cannot be read as a manifest ({type(error).__name__}: {error})")], []
    mismatches += [
        Mismatch(path.name, None, "the manifest has no such file")
        for path in sorted(folder.iterdir())
        if path.name not in known
    ]
    return manifest, mismatches, absent


def _check_record(folder: Path, manifest: Mapping[str, Any], sha256: str) -> Iterator[Mismatch]:
    try:
        record = json.loads((folder / RECORD).read_bytes())
        hashes, recorded, earlier = record.pop("sha256"), record.pop("id"), map(_safe, record.pop("earlier"))
        missing, expected = [file for file in earlier if not (folder / file).exists()], hashes[MANIFEST]
        if record or not hashes.keys() <= {MANIFEST, ENVELOPE}:
            raise ValueError("it says what nothing proves")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        yield Mismatch(RECORD, None, f"cannot be read ({type(error).__name__}): nothing says which manifest is right")
        return
    name = manifest.get("batch_id", manifest.get("job"))
    if name != recorded:
        yield Mismatch(MANIFEST, None, f"is that of {name}; {RECORD} is that of {recorded}")
    elif sha256 != expected:
        yield Mismatch(MANIFEST, None, f"has SHA-256 {sha256}; the server had one with {expected}")
    for file in missing:
        yield Mismatch(file, None, "is not there, and the server had it")
    if ENVELOPE in hashes:
        yield from _check_file(folder / ENVELOPE, {"sha256": hashes[ENVELOPE]})


def _check_file(path: Path, expected: Mapping[str, Any]) -> Iterator[Mismatch]:
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
        yield Mismatch(path.name, None, f"was changed: it has SHA-256 {sha256}, and should have {expected['sha256']}")


def _check_lines(folder: Path, manifest: Mapping[str, Any], source: str) -> Iterator[Mismatch]:
    """Yield the lines of a batch's results that are no JSON, are there twice, or stand out of the input's order."""
    requests, places, refused = set[int](), dict[str, int](), set[int | None]()
    with suppress(OSError):
        for _, value in _values(folder / _BATCH_FILES[1]):
            with suppress(AttributeError):
                refused.add(output_lines.invalid_line(value))
    try:
        for number, value in _values(folder / source):
            requests.add(number)
            if isinstance(value, dict) and number not in refused:  # which claim no custom_id
                places[str(value.get("custom_id"))] = number
    except OSError:
        return  # that it cannot be read is named already
    seen: dict[int, str] = {}
    lines = {one["name"]: one["lines"] for one in manifest["outputs"]}
    for name in _BATCH_FILES:
        last = 0
        try:
            for number, value in _values(folder / name):
                try:
                    custom_id, place = value["custom_id"], output_lines.invalid_line(value)
                except (LookupError, TypeError, AttributeError):
                    yield Mismatch(name, number, "is no line of results")
                    break
                place = places.get(str(custom_id)) if place is None else place
                if place is None or place not in requests:
                    yield Mismatch(name, number, f"the input has no request {quoted(str(custom_id))}")
                    continue
                if place in seen:
                    yield Mismatch(name, number, f"{quoted(str(custom_id))} has a second answer; {seen[place]}")
                elif place < last:
                    yield Mismatch(name, number, f"{quoted(str(custom_id))} stands out of the order of the input")
                last = max(last, place)
                seen.setdefault(place, f"the first is in {name}, line {number}")
            else:
                with (folder / name).open("rb") as file:
                    found, wanted = sum(1 for _ in file), lines.get(name)
                if wanted is not None and found != wanted:
                    yield Mismatch(name, None, f"has {count(found, 'line')}, and the manifest {wanted}")
        except FileNotFoundError:
            continue
    missing = sorted(requests - seen.keys())
    if missing and len(requests) == manifest["counts"]["total"]:
        message = f"{count(len(missing), 'request')} have no line of results, at first this one"
        yield Mismatch(source, missing[0], message)


def _values(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each line that is not blank; None for one that is no JSON."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if json_lines.is_blank(line):
                continue
            try:
                yield number, json_lines.loads(json_lines.without_mark(line))
            except ValueError:
                yield number, None
