"""The texts of files and of cells with audio, in their order; what is no audio has an error of its own."""

from __future__ import annotations

import io
import wave
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import batchyard
from batchyard.endpoints.catalog import TRANSCRIPTIONS, TRANSLATIONS
from batchyard.errors import ConfigurationError
from batchyard.models import ModelSpec
from batchyard.tables import sounds
from inference.engines.echo import Echo
from tests.support.engine_server import EngineServer


def wav(samples: int) -> bytes:
    with io.BytesIO() as file:
        with wave.open(file, "wb") as sound:
            sound.setparams((1, 2, 16_000, 0, "NONE", ""))
            sound.writeframes(b"\0\0" * samples)
        return file.getvalue()


SOUND = wav(10)
TEXT = "audio/wav 64"
"""What engine echo says of it."""


@pytest.fixture(scope="module")
def server() -> Any:
    endpoints = (TRANSCRIPTIONS.path, TRANSLATIONS.path)
    return EngineServer(Echo(ModelSpec(name="ears", engine="echo", endpoints=endpoints), 60.0))


def transcribe(data: Any, audio: str | None = None, **options: Any) -> Any:
    return batchyard.transcribe(data, audio, model="ears", progress=False, **options)


def test_each_file_of_a_folder_is_a_row_in_the_order_of_their_names(server: Any, tmp_path: Path) -> None:
    (tmp_path / "talks").mkdir()
    for name in ("talks/b.wav", "a.wav", "talks/c.wav", ".hidden.wav"):
        (tmp_path / name).write_bytes(SOUND)
    rows = transcribe(tmp_path, server=server)
    assert [(row["file"], row["text"], row["error"]) for row in rows] == [
        (name, TEXT, None) for name in ("a.wav", "talks/b.wav", "talks/c.wav")
    ]
    before = len(server.made)
    assert transcribe(str(tmp_path), server=server) == rows and len(server.made) == before, "the same call again"
    transcribe(tmp_path, server=server, translate=True)
    assert len(server.made) == before + 1


def test_recordings_of_phones_and_of_more_than_4_gb_are_sent(server: Any, tmp_path: Path) -> None:
    (tmp_path / "large.wav").write_bytes(b"RF64\xff\xff\xff\xffWAVEds64" + bytes(28))
    (tmp_path / "phone.amr").write_bytes(b"#!AMR\n<" + bytes(12))
    texts = [row["text"].split()[0] for row in transcribe(tmp_path, server=server)]
    assert texts == ["audio/wav", "audio/amr"]


def test_what_is_no_audio_or_too_long_is_an_error_of_its_row(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sounds, "MAX_BYTES", 100)
    for name, content in {"a.wav": SOUND, "b.txt": b"hello", "c.wav": b"", "d.wav": wav(1000)}.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "e.wav").symlink_to("missing")
    rows = {row["file"]: row for row in transcribe(tmp_path, server=server)}
    assert rows["a.wav"]["text"] == TEXT
    assert {name: row["error"] for name, row in rows.items() if row["text"] is None} == {
        "b.txt": "the file is no audio: it is neither WAV, FLAC, Ogg, MP3, MP4, WebM, AIFF, AMR, CAF, AU nor WMA; "
        "convert it to one of these",
        "c.wav": "the file has no audio: it has 0 bytes",
        "d.wav": "the file is too long: it has 0.0 MB, and a request has room for 0.0 MB; send it in parts",
    }


def test_audio_in_a_column_gives_a_column_of_the_tables_kind(server: Any) -> None:
    cells = [SOUND, None, {"bytes": SOUND, "path": "a.wav"}, "https://example.org/a.wav", "a.wav", 7]
    table = pd.DataFrame({"clip": cells}, index=list("abcdef"))
    texts = transcribe(table, "clip", server=server)
    assert texts.index.tolist() == list("abcdef")
    assert texts.dropna().to_dict() == {"a": TEXT, "c": TEXT, "d": "https://example.org/a.wav"}
    details = transcribe(table, "clip", server=server, details=True)
    assert details["error"].tolist()[1] == "column clip is empty"
    assert details["error"].tolist()[4].startswith("column clip holds a text that is no URL")
    assert details["error"].tolist()[5].startswith("column clip holds a int")


def test_times_are_columns_beside_the_texts(server: Any) -> None:
    table = transcribe([{"clip": SOUND}], "clip", server=server, times=True, language="de")
    assert table == [{"text": TEXT, "language": "de", "duration": 0.0, "segments": []}]


@pytest.mark.parametrize(
    ("data", "audio", "options", "says"),
    [
        ([{"clip": SOUND}], None, {}, "name the column"),
        ([{"clip": SOUND}], "klip", {}, "did you mean 'clip'"),
        ("nowhere", None, {}, "is no folder"),
        (".", "clip", {}, "a folder's rows are its files"),
        ([{"clip": SOUND}], "clip", {"response_format": "srt"}, "times=True"),
        ([{"clip": "a.wav"}], "clip", {}, "no row can be sent; row 1: column clip holds a text"),
    ],
)
def test_a_wrong_call_says_what_is_right(
    server: Any, data: Any, audio: str | None, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        transcribe(data, audio, server=server, **options)


def test_a_folder_without_files_is_refused(server: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="has no files"):
        transcribe(tmp_path, server=server)


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"fLaC", "flac"), (b"OggS", "ogg"), (b"ID3", "mpeg"), (b"\xff\xfb\x90", "mpeg"), (b"\0\0\0\x20ftypM4A ", "mp4")],
)
def test_the_kind_of_audio_is_told_by_its_first_bytes(content: bytes, kind: str) -> None:
    assert sounds.url(content).startswith(f"data:audio/{kind};base64,")
