"""`download` and `verify`: a batch's files against its manifest, and its answers against new ones."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchyard import signatures
from batchyard.client import verification
from batchyard.comparing.differences import difference
from batchyard.comparing.shares import share_bounds
from tests.batchyard.cli.conftest import terminal_of
from tests.support.stacks import RunningStack, a_chat


@pytest.fixture(scope="module")
def whole(stack: RunningStack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all files of a batch that has answers, an error and a step."""
    requests = [a_chat(f"r{number}", f"question {number}") for number in range(20)]
    requests.insert(7, a_chat("refused", "hello", temperature="warm"))
    requests += [a_chat("r3", "the same id again"), a_chat(7, "an id that is no text")]  # type: ignore[arg-type]
    batch = stack.wait(stack.submit(requests, extra_body={"on_invalid": "skip", "post_process": [{"step": "parquet"}]}))
    assert (batch.request_counts.completed, batch.request_counts.failed) == (20, 3)
    folder = tmp_path_factory.mktemp("batch") / "whole"
    result = terminal_of(stack, folder.parent)("download", batch.id, folder)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture
def downloaded(whole: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    return Path(shutil.copytree(whole, tmp_path / "downloaded"))


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines(keepends=True)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    place = content.rindex(b"question 5")
    content[place] ^= 1
    file.write_bytes(content)


def swap(file: Path) -> None:
    all_lines = lines(file)
    all_lines[3], all_lines[12] = all_lines[12], all_lines[3]
    file.write_text("".join(all_lines))


def edit(file: Path) -> None:
    manifest = json.loads(file.read_text())
    manifest["counts"]["completed"] += 1
    file.write_text(json.dumps(manifest))


TAMPERED: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "a bit of an answer": ("output.jsonl", flip, "output.jsonl: was changed: it has SHA-256 "),
    "two answers in each other's place": ("output.jsonl", swap, "output.jsonl, line 5: 'r4' stands out of the order"),
    "an answer twice": (
        *("output.jsonl", lambda file: file.write_text("".join([*lines(file), lines(file)[2]]))),
        "output.jsonl, line 21: 'r2' has a second answer; the first is in output.jsonl, line 3",
    ),
    "a file cut off": (
        *("output.jsonl", lambda file: file.write_bytes(file.read_bytes()[:-30])),
        "output.jsonl, line 20: is no line of results",
    ),
    "an answer left out": (
        *("output.jsonl", lambda file: file.write_text("".join(lines(file)[:-1]))),
        "output.jsonl: has 19 lines, and the manifest 20",
    ),
    "an edited request": ("input.jsonl", flip, "input.jsonl: was changed"),
    "an edited error": (
        *("errors.jsonl", lambda file: file.write_text(file.read_text().replace("temperature", "temperament"))),
        "errors.jsonl: was changed",
    ),
    "a table of a step": (
        *("results.parquet", lambda file: file.write_bytes(file.read_bytes() + b"\n")),
        "results.parquet: has ",
    ),
    "a file that is gone": ("errors.jsonl", Path.unlink, "errors.jsonl: cannot be read: No such file or directory"),
    "an edited manifest": ("manifest.json", edit, "manifest.json: has SHA-256 "),
    "a manifest of another batch": (
        *("manifest.json", lambda file: file.write_text(file.read_text().replace('"batch_id": "', '"batch_id": "x'))),
        "manifest.json: is that of xbatch_",
    ),
    "no manifest at all": (
        *("manifest.json", lambda file: file.write_text("{}")),
        "manifest.json: cannot be read as a manifest",
    ),
    "a line too many": (
        *("output.jsonl", lambda file: file.write_text(file.read_text() + "\n")),
        "output.jsonl: has ",
    ),
    "a path out of the folder": (
        *("manifest.json", lambda file: file.write_text(file.read_text().replace("output.jsonl", "/etc/hostname"))),
        "manifest.json: cannot be read as a manifest (ValueError: '/etc/hostname' is no name of a file",
    ),
    "a file of somebody's": (
        *("output.jsonl", lambda file: (file.parent / "notes.txt").write_text("mine")),
        "notes.txt: the manifest has no such file",
    ),
}


def test_a_downloaded_batch_is_as_its_manifest_says_and_each_change_of_it_is_named(
    downloaded: Path, terminal: Any
) -> None:
    names = {"input.jsonl", "output.jsonl", "errors.jsonl", "results.parquet", "manifest.json", "record.json"}
    assert {path.name for path in downloaded.iterdir()} == names
    sound = terminal("verify", downloaded)
    assert (sound.returncode, sound.stderr) == (0, "")
    assert "all files of batch_" in sound.stdout
    contents = {path: path.read_bytes() for path in downloaded.iterdir()}
    for what, (name, tamper, message) in TAMPERED.items():
        tamper(downloaded / name)
        _, found, _ = verification.check(downloaded)
        assert any(str(one).startswith(message) for one in found), (what, list(map(str, found)))
        for path in downloaded.iterdir():
            if path not in contents:
                path.unlink()
        for path, content in contents.items():
            path.write_bytes(content)
    assert verification.check(downloaded)[1] == []
    flip(downloaded / "output.jsonl")
    changed = terminal("verify", downloaded, "--json")
    assert changed.returncode == 1 and "does not fit its manifest" in changed.stderr
    assert [one["file"] for one in json.loads(changed.stdout)["mismatches"]] == ["output.jsonl"]


def test_a_folder_says_whether_a_key_has_signed_it(downloaded: Path, terminal: Any, tmp_path: Path) -> None:
    (tmp_path / "signing.key").write_text(signatures.new_key_file([]))
    public = signatures.pem(signatures.read(tmp_path / "signing.key")[0])
    (tmp_path / "public.pem").write_text(public)
    envelope = downloaded / signatures.ENVELOPE

    missing = terminal("verify", downloaded, "--public-key", public)
    assert (missing.returncode, missing.stdout) == (
        1,
        "manifest.dsse.json: is not there: the manifest is not signed\n",
    )
    envelope.write_bytes(
        signatures.signed(tmp_path / "signing.key", (downloaded / "manifest.json").read_bytes())[envelope.name]
    )
    for given in (public, tmp_path / "public.pem"):
        sound = terminal("verify", downloaded, "--public-key", given)
        assert (sound.returncode, sound.stderr) == (0, ""), sound.stdout
        assert sound.stdout.endswith("are as its manifest says, which the key has signed\n")
    assert terminal("verify", downloaded).returncode == 0

    (tmp_path / "signing.key").write_text(signatures.new_key_file([]))
    other = signatures.pem(signatures.read(tmp_path / "signing.key")[0])
    assert "manifest.dsse.json: is signed by key " in terminal("verify", downloaded, "--public-key", other).stdout
    # All that a person can change together: an answer, the manifest, and the record.
    flip(downloaded / "output.jsonl")
    manifest = json.loads((downloaded / "manifest.json").read_text())
    for output in manifest["outputs"]:
        output["sha256"] = hashlib.sha256((downloaded / output["name"]).read_bytes()).hexdigest()
    (downloaded / "manifest.json").write_text(json.dumps(manifest))
    record = json.loads((downloaded / "record.json").read_text())
    record["sha256"] = {name: hashlib.sha256((downloaded / name).read_bytes()).hexdigest() for name in record["sha256"]}
    (downloaded / "record.json").write_text(json.dumps(record))
    assert terminal("verify", downloaded).returncode == 0
    forged = terminal("verify", downloaded, "--public-key", public)
    assert forged.stdout == "manifest.dsse.json: was signed for another manifest\n"
    for wrong in ("nowhere.pem", downloaded / "manifest.json"):
        assert "is no public key" in terminal("verify", downloaded, "--public-key", wrong).stderr


def test_a_downloaded_job_is_checked_as_well(terminal: Any, stack: RunningStack, tmp_path: Path) -> None:
    rows = [{"prompt": f"prompt {number}", "answer": "prompt 1"} for number in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    scored = ("--reward", "exact", "--ground-truth", "answer")
    made = terminal("job", "create", "rollout", "rows.jsonl", "-n", "2", "--model", "echo", *scored, "--json")
    assert made.returncode == 0, made.stderr
    job = stack.wait_for_job(json.loads(made.stdout))
    folder = tmp_path / "job"
    assert terminal("download", job["id"], folder).returncode == 0
    assert terminal("verify", folder).returncode == 0
    (stage,) = folder.glob(f"{job['batchyard']['stages'][0]['batch_id']}.*.manifest.json")
    stage.write_text(stage.read_text().replace('"completed": 8', '"completed": 7'))
    (folder / "metrics.json").write_text("{}")
    changed = terminal("verify", folder)
    assert changed.returncode == 1 and changed.stdout.startswith("metrics.json: has 2 bytes")
    assert f"{stage.name}: was changed: it has SHA-256 " in changed.stdout


def test_what_cannot_be_downloaded_or_checked_says_why(terminal: Any, downloaded: Path, tmp_path: Path) -> None:
    record = json.loads((downloaded / "record.json").read_text())
    again = terminal("download", record["id"], downloaded)
    assert again.returncode == 2 and "is not empty; name a new folder" in again.stderr
    (tmp_path / "other").mkdir()
    empty = terminal("verify", tmp_path / "other")
    assert empty.returncode == 2 and "`batchyard download BATCH|JOB DIR` makes such a folder" in empty.stderr


def test_a_sample_is_asked_again_and_the_share_that_would_differ_has_its_bounds(
    terminal: Any, stack: RunningStack
) -> None:
    texts = [f"question {number}" + " <slow 0.9>other</slow>" * (number > 35) for number in range(40)]
    requests = [a_chat(f"r{number}", text) for number, text in enumerate(texts)]
    wrong = [a_chat(f"r{number}", "no request: it claims no id", temperature="warm") for number in range(40)]
    batch = stack.wait(stack.submit([*wrong, *requests], extra_body={"on_invalid": "skip"}))
    result = terminal("verify", batch.id, "--sample", "30", "--alone", "--replica", "0", "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert (report["asked"], report["equal"], report["differences"], report["unanswered"]) == (30, 30, [], [])
    assert report["low"] == 0 and 0 < report["high"] < 0.1
    assert (report["changes"], report["alone"], report["replica"]) == ([], True, 0)
    again = stack.client.batches.retrieve(report["again_id"])
    assert again.metadata == {"verifies": batch.id}
    shown = terminal("verify", batch.id, "--with", again.id).stdout
    assert f"30 of 40 answers asked again by {again.id}, each alone, in replica 0" in shown
    asked = stack.client.files.content(again.input_file_id).text.splitlines()
    order = [json.loads(line)["custom_id"] for line in asked]
    assert order != sorted(order, key=lambda one: int(one[1:])) and len(set(order)) == 30

    others = [a_chat(f"r{number}", text, model="slow") for number, text in enumerate(texts)]
    step = {"step": "verify", "batch_id": batch.id, "sample": 40}
    other = stack.wait(stack.submit(others, extra_body={"post_process": [step]}))
    result = terminal("verify", batch.id, "--with", other.id)
    assert result.returncode == 1
    assert "36 equal, 4 different, 0 without an answer" in result.stdout
    assert "10.0 to 10.0 % of all answers would differ" in result.stdout
    assert "changed since then: echo answered then, and slow now" in result.stdout
    assert "r37: text from character" in result.stdout
    shown = stack.client.batches.retrieve(batch.id).batchyard["verification"]
    assert {shown.pop("batch_id"), shown.pop("at") > 0} == {other.id, True}
    counts = {"asked": 40, "equal": 36, "different": 4, "failed": 0}
    assert shown == {**counts, "low": 0.1, "high": 0.1, "changes": 1}
    # A request to the first model among them does not hide that another one has answered.
    others.append(a_chat("more", "hello"))
    other = stack.wait(stack.submit(others, extra_body={"post_process": [step]}))
    assert (
        "changed since then: echo answered then, and slow now"
        in terminal("verify", batch.id, "--with", other.id).stdout
    )

    assert f"verifies {batch.id}, and not {other.id}" in terminal("verify", other.id, "--with", other.id).stderr
    for by_hand, reason in (
        (others[:39], "request r39 is missing, which `sample` and `seed` draw from"),
        (
            [*others[:39], a_chat("r39", texts[0])],
            f"request r39 is not that of {batch.id}: only model, logprobs, top_l",
        ),
        ([a_chat(f"r{number}", text, n=1) for number, text in enumerate(texts)], "request r0 is not that of"),
    ):
        again = stack.wait(stack.submit(by_hand, extra_body={"post_process": [step]}))
        result = terminal("verify", batch.id, "--with", again.id)
        assert result.returncode == 2
        assert reason in result.stderr
    assert stack.client.batches.retrieve(batch.id).batchyard["verification"]["batch_id"] == other.id


def chat(text: str, logprobs: Any = None) -> dict[str, Any]:
    choice = {"message": {"content": text}, "finish_reason": "stop", "logprobs": logprobs}
    return {"id": "new each time", "choices": [choice]}


def test_differences_say_where_and_how_close_the_tokens_were() -> None:
    assert difference("a", {}, chat("one two"), chat("one two") | {"id": "other"}, 0) is None
    tokens = [
        {"token": "one", "logprob": -0.1, "top_logprobs": []},
        {"token": " too", "logprob": -0.70, "top_logprobs": [{"token": " two", "logprob": -0.71}]},
    ]
    found = difference("a", {}, chat("one two"), chat("one too", {"content": tokens}), 0)
    assert found is not None and (found.before, found.after) == ("wo", "oo")
    assert found.what == "text from character 6" and found.gap == pytest.approx(0.01)
    cut = chat("one two")
    cut["choices"][0]["finish_reason"] = "length"
    assert "finish reason" in str(difference("a", {}, chat("one two"), cut, 0))


def test_numbers_may_differ_by_the_tolerance() -> None:
    def vectors(*numbers: float) -> dict[str, Any]:
        return {"data": [{"index": 0, "embedding": list(numbers)}]}

    def scores(number: float) -> dict[str, Any]:
        return {"results": [{"index": 0, "relevance_score": number}]}

    assert difference("a", {}, vectors(0.5, 1), vectors(0.5, 1.001), 0.01) is None
    assert difference("a", {}, vectors(0.5, 1), vectors(0.5, 1.001), 0) is not None
    assert difference("a", {}, vectors(0.5, 1), vectors(0.5), 1) is not None
    assert difference("a", {}, scores(0.5), scores(0.52), 0.05) is None
    assert difference("a", {}, scores(0.5), scores(0.52), 0.01) is not None


@pytest.mark.parametrize(("total", "sample"), [(50, 10), (300, 60)])
def test_the_bounds_hold_in_at_least_95_percent_of_all_samples(total: int, sample: int) -> None:
    from math import comb

    bounds = [share_bounds(found, sample, total) for found in range(sample + 1)]
    for marked in range(total + 1):
        holds = sum(
            comb(marked, found) * comb(total - marked, sample - found)
            for found in range(max(0, sample - total + marked), min(sample, marked) + 1)
            if bounds[found][0] <= marked / total <= bounds[found][1]
        )
        assert holds / comb(total, sample) >= 0.95
