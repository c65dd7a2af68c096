"""`verification.check` on 100 sound folders and 100 that were tampered with, without a server."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchyard import signatures
from batchyard.client import verification


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def write_lines(file: Path, values: list[Any]) -> None:
    file.write_text("".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values))


def a_batch(folder: Path, chance: random.Random) -> None:
    """Write a folder as `download` does: a batch of random requests, of which some have failed, with a table."""
    folder.mkdir()
    ids = [f"{chance.choice(('r', 'ä', '質'))}-{number}" for number in range(chance.randint(4, 40))]
    failed = set(chance.sample(ids, chance.randint(2, len(ids) - 2)))
    text = {name: " ".join(chance.choices(("good", "bad", "né", "\n", '"'), k=chance.randint(1, 30))) for name in ids}
    write_lines(folder / "input.jsonl", [{"custom_id": name, "body": {"prompt": text[name]}} for name in ids])
    lines = [{"custom_id": name, "response": {"body": {"text": text[name]}}, "error": None} for name in ids]
    write_lines(folder / "output.jsonl", [line for line in lines if line["custom_id"] not in failed])
    write_lines(folder / "errors.jsonl", [line | {"response": None} for line in lines if line["custom_id"] in failed])
    (folder / "results.parquet").write_bytes(chance.randbytes(200))
    seal(folder, chance, len(ids))


def seal(folder: Path, chance: random.Random, total: int) -> None:
    """Write the manifests of a batch's files and of those that it retries, its signature, and its record."""
    outputs = [
        {"name": file.name, "sha256": sha256(file), "bytes": file.stat().st_size, "lines": None}
        for file in sorted(folder.iterdir())
        if file.name != "input.jsonl" and not file.name.startswith("batch_")
    ]
    engine = {name: chance.randbytes(32).hex() for name in ("model_sha256", "adapter_sha256 french")}
    manifest = {
        "batch_id": f"batch_{chance.randrange(10**9)}",
        "input": {"sha256": sha256(folder / "input.jsonl")},
        "outputs": outputs,
        "counts": {"total": total},
        "earlier_manifests": retried(folder, chance),
        "models": {"mini": {"config": {"engine_args": {"chat_template": "{{ messages[0] }}"}}, "engines": [engine]}},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2))
    key = folder.with_suffix(".key")
    key.write_text(signatures.new_key_file([]))
    for name, envelope in signatures.signed(key, (folder / "manifest.json").read_bytes()).items():
        (folder / name).write_bytes(envelope)
    hashes = {file.name: sha256(file) for file in folder.glob("manifest.*")}
    earlier = sorted(file.name for file in folder.glob("batch_*"))
    (folder / "record.json").write_text(json.dumps({"id": manifest["batch_id"], "sha256": hashes, "earlier": earlier}))


def retried(folder: Path, chance: random.Random) -> dict[str, Any]:
    """Write the manifests of a chain of two retries, as `download` does. Return what the next one says of them."""
    named: dict[str, Any] = {f"batch_{chance.randrange(10**9)}": None}  # it was deleted before the first retry ended
    for batch_id in ("batch_first", "batch_second"):
        manifest = {"batch_id": batch_id, "earlier_manifests": named, "counts": {"failed": chance.randrange(9)}}
        content = json.dumps(manifest).encode()
        digest = hashlib.sha256(content).hexdigest()
        (folder / f"{batch_id}.{digest[:8]}.manifest.json").write_bytes(content)
        named = {batch_id: {"file_id": "file-1", "sha256": digest}}
    return named


def a_bit(file: Path, chance: random.Random) -> None:
    content = bytearray(file.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(content)


def lines_changed(change: Callable[[list[str], random.Random], Any]) -> Callable[[Path, random.Random], None]:
    def tamper(file: Path, chance: random.Random) -> None:
        lines = file.read_text().splitlines(keepends=True)
        change(lines, chance)
        file.write_text("".join(lines))

    return tamper


def swap(lines: list[str], chance: random.Random) -> None:
    one, other = chance.sample(range(len(lines)), 2)
    lines[one], lines[other] = lines[other], lines[one]


def swap_answers(lines: list[str], chance: random.Random) -> None:
    """Give two requests each other's answer: lines and order stay as they were."""
    first, second = chance.sample(range(len(lines)), 2)
    one, other = json.loads(lines[first]), json.loads(lines[second])
    other["response"], one["response"] = one["response"] or {"id": 1}, other["response"] or {"id": 2}
    for place, value in ((first, one), (second, other)):
        lines[place] = json.dumps(value, ensure_ascii=False) + " \n"


def engine_changed(key: str) -> Callable[[Path, random.Random], None]:
    def tamper(file: Path, chance: random.Random) -> None:
        manifest = json.loads(file.read_text())
        manifest["models"]["mini"]["engines"][0][key] = chance.randbytes(32).hex()
        file.write_text(json.dumps(manifest, indent=2))

    return tamper


def other_template(file: Path, chance: random.Random) -> None:
    manifest = json.loads(file.read_text())
    manifest["models"]["mini"]["config"]["engine_args"]["chat_template"] = chance.choice(("", "{{ messages }}"))
    file.write_text(json.dumps(manifest, indent=2))


def a_claim(file: Path, chance: random.Random) -> None:
    """Write into the record what the manifest does not say."""
    claim = chance.choice(
        (
            {"earlier": ["batch_0.00000000.manifest.json"]},
            {"verification": {"different": 0}},
            {"status": "completed"},
            {"sha256": {"x": "y"}},
        )
    )
    file.write_text(json.dumps({**json.loads(file.read_text()), **claim}))


def edited(file: Path, chance: random.Random) -> None:
    manifest = json.loads(file.read_text())
    manifest["counts"]["failed"] += chance.randint(1, 9)
    file.write_text(json.dumps(manifest))


def other_manifest(file: Path, chance: random.Random) -> None:
    a_batch(file.parent.with_suffix(".other"), chance)
    file.write_bytes((file.parent.with_suffix(".other") / file.name).read_bytes())


OF_LINES = ("input.jsonl", "output.jsonl", "errors.jsonl")
EARLIER = ("batch_first.*", "batch_second.*")
COVERED = (*OF_LINES, *EARLIER, "results.parquet", "manifest.json", "manifest.dsse.json", "record.json")
KINDS: list[tuple[tuple[str, ...], Callable[[Path, random.Random], Any]]] = [
    (COVERED, a_bit),
    (COVERED, lambda file, chance: file.write_bytes(file.read_bytes()[: -chance.randint(1, 30)])),
    (COVERED, lambda file, chance: file.unlink()),
    (OF_LINES, lines_changed(swap)),
    (OF_LINES, lines_changed(lambda lines, chance: lines.pop(chance.randrange(len(lines))))),
    (OF_LINES, lines_changed(lambda lines, chance: lines.append(chance.choice(lines)))),
    (("output.jsonl",), lines_changed(swap_answers)),
    (("manifest.json",), engine_changed("model_sha256")),
    (("manifest.json",), engine_changed("adapter_sha256 french")),
    (("manifest.json",), other_template),
    (("manifest.json",), other_manifest),
    (EARLIER, edited),
    (("record.json",), a_claim),
    (("notes.txt",), lambda file, chance: file.write_text("mine")),
]


@pytest.mark.parametrize("signed", [False, True])
def test_each_of_100_changes_is_named_and_none_of_100_sound_folders(tmp_path: Path, signed: bool) -> None:
    chance = random.Random(56)
    for number in range(100):
        folder = tmp_path / str(number)
        a_batch(folder, chance)
        keys = signatures.read(folder.with_suffix(".key")) if signed else []
        assert verification.check(folder, keys)[1] == [], number
        names, tamper = KINDS[number % len(KINDS)]
        pattern = chance.choice(names)
        file = next(folder.glob(pattern), folder / pattern)
        before, name = file.read_bytes() if file.exists() else None, file.name
        tamper(file, chance)
        after = file.read_bytes() if file.exists() else None
        assert before != after
        if name == "manifest.json" and after is None:
            with pytest.raises(verification.ConfigurationError, match=r"has no manifest\.json"):
                verification.check(folder, keys)
            continue
        found = verification.check(folder, keys)[1]
        if name == "input.jsonl" and after is None:
            name = "input"
        # Nothing says whether a record or what it names was changed.
        assert name in {one.file for one in found} or (found and name == "record.json"), (number, name, tamper, found)


def test_an_earlier_manifest_that_the_server_had_no_more_is_no_fault(tmp_path: Path) -> None:
    a_batch(tmp_path / "folder", random.Random(1))
    record = json.loads((tmp_path / "folder" / "record.json").read_text())
    first, second = record["earlier"]
    (tmp_path / "folder" / first).unlink()
    message = f"{first}: is not there, and the server had it"
    assert [str(one) for one in verification.check(tmp_path / "folder")[1]] == [message]
    (tmp_path / "folder" / "record.json").write_text(json.dumps(record | {"earlier": [second]}))
    assert verification.check(tmp_path / "folder")[1:] == ([], [first])


def refused(line: int, custom_id: str | None) -> dict[str, Any]:
    return {"custom_id": custom_id, "response": None, "error": {"code": "invalid_request", "line": line}}


def test_lines_that_were_no_requests_are_results_too_and_keep_no_other_from_its_check(tmp_path: Path) -> None:
    """A batch with `on_invalid: skip`: of its lines the second is no JSON, and the third has no such model."""
    folder = tmp_path / "folder"
    a_batch(folder, random.Random(1))
    names = ["a", "b", "c", "b", "d"]
    lines = [json.dumps({"custom_id": name, "body": {}}) for name in names]
    lines[2] = "{no JSON"
    (folder / "input.jsonl").write_text("\ufeff" + "\n".join(lines) + "\n")
    answers = [{"custom_id": name, "response": {"body": {}}, "error": None} for name in ("a", "b", "d")]
    write_lines(folder / "output.jsonl", answers)
    write_lines(folder / "errors.jsonl", [refused(2, "b"), refused(3, None)])

    def problems() -> list[str]:
        for file in (folder / "record.json", *folder.glob("*manifest*")):
            file.unlink()
        seal(folder, random.Random(2), len(names))
        return [str(one) for one in verification.check(folder)[1]]

    assert problems() == []
    write_lines(folder / "output.jsonl", [answers[1], answers[0], answers[0]])
    write_lines(folder / "errors.jsonl", [refused(2, "b"), refused(7, None)])
    assert problems() == [
        "output.jsonl, line 2: 'a' stands out of the order of the input",
        "output.jsonl, line 3: 'a' has a second answer; the first is in output.jsonl, line 2",
        "errors.jsonl, line 2: the input has no request 'None'",
        "input.jsonl, line 3: 2 requests have no line of results, at first this one",
    ]
