"""`batchyard.transcribe`: what is said in each file of a folder, or in the audio of each row of a table."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from batchyard.client import asking, frames
from batchyard.client.api import ApiClient
from batchyard.client.asking import Values
from batchyard.client.frames import Column
from batchyard.client.map import TextResults
from batchyard.endpoints.catalog import TRANSCRIPTIONS, TRANSLATIONS
from batchyard.errors import ConfigurationError
from batchyard.tables import sounds

TEXT, FILE = "text", "file"
TIMES = ("language", "duration", "segments")
"""Columns of a transcription with times."""


def transcribe(
    data: Any,
    audio: str | None = None,
    *,
    model: str,
    translate: bool = False,
    language: str | None = None,
    times: bool = False,
    details: bool = False,
    window: str = "24h",
    again: bool = False,
    progress: bool = True,
    server: ApiClient | None = None,
    **parameters: Any,
) -> Any:
    """Return what is said in each file of a folder or in the audio of each row of a table, in their order.

    The same call again takes up the batches of the first, as that of `batchyard.map` does. What is no audio, too long
    or broken is an error of its row. One file at a time is in memory.

    Args:
        data: a folder, whose files are the rows, those of its folders included; or a table, as `map` takes it.
        audio: the column of a table with the audio: bytes of files, mappings with these as in datasets of Hugging Face,
            or URLs.
        translate: into English.
        language: of all audio, such as "de". By default the model detects it, if it can.
        times: return columns `language`, `duration` (seconds) and `segments` (a list of objects with `start`, `end` and
            `text`) beside the texts, for models that tell them.
        details: return a table with columns `error` and `tokens` beside the texts.
        window, again, progress, server: as `map` has them.
        parameters: others of the requests' bodies, such as `prompt` or `temperature`.

    Returns:
        Of a folder a list of dicts with `file` (relative to the folder), `text`, `error` and `tokens`. Of a table a
        column as that of `map`, or with `times` or `details` a table with a column `text`. What has no text is None.

    Raises ConfigurationError, RequestError, UnavailableError: as `map`. Or the folder has no files.
    """
    if "response_format" in parameters:
        raise ConfigurationError(
            "response_format: pass times=True for times, or leave it out; what comes back is a text"
        )
    how = asking.CallOptions(window=window, again=again, progress=progress, server=server, name="transcribe")
    results = Transcripts()
    if times:
        parameters["response_format"] = "verbose_json"
    options = {"model": model, "translate": translate, "language": language, **parameters}
    if isinstance(data, str | os.PathLike):
        if audio is not None:
            raise ConfigurationError("audio: it names a column of a table; a folder's rows are its files")
        names = listing(Path(data))
        send(({"file": Path(data) / name} for name in names), results, how, **options)
        results.warn()
        frame = frames.of([{FILE: str(name)} for name in names])
        columns = {FILE: Column([str(name) for name in names]), **results.transcripts(times), **results.details()}
        return frame.table(columns)
    frame = frames.of(data)
    if audio is None:
        raise ConfigurationError("audio: name the column of the table that has it")
    asking.template(f"{{{audio}}}", "audio", frame.columns)
    rows = ({"audio": row[audio], "column": audio} for row in asking.rows(frame, [audio]))
    send(rows, results, how, **options)
    results.warn()
    columns = results.transcripts(times)
    if details:
        return frame.table({**columns, **results.details()})
    return frame.table(columns) if times else frame.column(TEXT, columns[TEXT])


def listing(folder: Path) -> list[Path]:
    """Return the files of a folder. Raises ConfigurationError if it has none."""
    if not folder.is_dir():
        raise ConfigurationError(f"{folder} is no folder; name one with audio files, or pass a table")
    names = sounds.files(folder)
    if not names:
        raise ConfigurationError(f"{folder} has no files")
    return names


def send(
    rows: Iterable[Values],
    results: Transcripts,
    how: asking.CallOptions,
    *,
    model: str,
    translate: bool = False,
    **parameters: Any,
) -> None:
    """Put the text of each row's audio into `results`. Raises as `transcribe`.

    `rows`: each with `file`, or with `audio` and the `column` that it is from.
    """
    endpoint = (TRANSLATIONS if translate else TRANSCRIPTIONS).path
    body = asking.parameters(model, **{"temperature": 0, **parameters})

    def make(values: Values) -> Mapping[str, Any]:
        file = values.get("file")
        url = sounds.url(values["audio"], values["column"]) if file is None else sounds.of_file(file)
        return {**body, "file_url": url}

    asking.ask_rows(model, endpoint, rows, make, results, how)


class Transcripts(TextResults):
    """The texts of the answers, and what verbose ones tell beside them."""

    def __init__(self) -> None:
        super().__init__()
        self._times: dict[int, dict[str, Any]] = {}

    def keep(self, row: int, body: Mapping[str, Any]) -> str | None:
        segments = body.get("segments")
        if isinstance(segments, list):
            kept = ("start", "end", "text")
            pieces = [{name: piece.get(name) for name in kept} for piece in segments if isinstance(piece, Mapping)]
            self._times[row] = {"language": body.get("language"), "duration": body.get("duration"), "segments": pieces}
        return super().keep(row, body)

    def transcripts(self, times: bool) -> dict[str, Column]:
        """Return the column `text`, and with `times` those of TIMES."""
        texts = self.columns(None)["answer"].values  # a Whisper begins with a space
        columns = {TEXT: Column([text and text.strip() for text in texts])}
        for name in TIMES if times else ():
            columns[name] = Column([self._times.get(row, {}).get(name) for row in range(len(self))], None)
        return columns
