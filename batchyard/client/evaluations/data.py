"""Rows of an evaluation: a table in a file, or the folder of a data set."""

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import orjson

from batchyard import json_lines
from batchyard.client import tables
from batchyard.client.evaluations.evaluation import written, wrong
from batchyard.tables import formats

SPLITS = ("test", "validation", "valid", "val", "dev", "train")
"""Which split of a data set is evaluated if none is named: the first that it has."""
MOST_EXAMPLES = 1000
"""Rows that few-shot examples are drawn from; of more these are drawn first."""
_ARROW_STATE, _ARROW_SPLITS = "state.json", "dataset_dict.json"
"""What `save_to_disk` of the library datasets writes into the folder of a data set, and of one with splits."""


def source_of(path: Path, split: str | None, folder: Path) -> Path:
    """Return a file with the rows of a table or of a data set's folder, which may be one in `folder`."""
    if path.is_file():
        if split is not None:
            raise wrong(path, f"a file has no split {split!r}; name the folder of a data set, or leave `split` out")
        if path.suffix == ".json":
            return written(_json_rows(path), folder)
        tables.kind_of(path)
        return path
    if not path.is_dir():
        raise wrong(path, "there is no such file or folder")
    parts = _parts(path, split)
    if len(parts) == 1 and parts[0].suffix != ".arrow":
        return parts[0]
    if all(part.suffix in (".arrow", ".parquet") for part in parts):
        import pyarrow.parquet as pq

        batches = (batch for part in parts for batch in _batches(part))
        first = next(batches, None)
        if first is None:
            raise wrong(parts[0].parent if parts else folder, "there are no rows")
        with (
            tempfile.NamedTemporaryFile(dir=folder, suffix=".parquet", delete=False) as target,
            pq.ParquetWriter(target, first.schema, compression="zstd") as writer,
        ):
            for batch in chain([first], batches):
                writer.write_batch(batch)
        return Path(target.name)
    return written((row for part in parts for row in tables.rows_of(part)), folder)


def examples(path: Path, split: str | None, folder: Path, seed: int) -> list[dict[str, Any]]:
    """Return the rows that few-shot examples are drawn from, at most MOST_EXAMPLES, which the seed draws of more."""
    random = Random(seed)
    kept: list[dict[str, Any]] = []
    for number, row in enumerate(tables.rows_of(source_of(path, split, folder))):  # Vitter's algorithm R (1985)
        if number < MOST_EXAMPLES:
            kept.append(row)
        elif (place := random.randrange(number + 1)) < MOST_EXAMPLES:
            kept[place] = row
    return json_lines.loads(json_lines.dumps(kept, default=str, option=orjson.OPT_SERIALIZE_NUMPY))  # type: ignore[no-any-return]


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file with a list of them, or with one on each line."""
    content = path.read_bytes()
    try:
        value = json_lines.loads(content)
    except orjson.JSONDecodeError:
        try:
            value = [json_lines.loads(line) for line in content.split(b"\n") if line.strip()]
        except orjson.JSONDecodeError as error:
            raise wrong(path, f"it is no JSON: {error}") from None
    entries = value if isinstance(value, list) else [value]
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise wrong(path, f"entry {number} is no object")
        yield entry


def _parts(path: Path, split: str | None) -> list[Path]:
    if (path / _ARROW_SPLITS).is_file():
        names = json_lines.loads((path / _ARROW_SPLITS).read_bytes()).get("splits") or []
        return _arrow_files(path / _chosen(path, split, names))
    if (path / _ARROW_STATE).is_file():
        if split is not None:
            raise wrong(path, f"the data set has no splits; leave out {split!r}")
        return _arrow_files(path)
    by_split = _files(path)
    return by_split[_chosen(path, split, list(by_split))]


def _files(path: Path) -> dict[str, list[Path]]:
    """Return the tables in a folder by split: `test.jsonl`, `data/test-00000-of-00002.parquet`, `test/part.parquet`."""
    by_split: dict[str, list[Path]] = defaultdict(list)
    for folder in (path, path / "data"):
        for entry in sorted(folder.glob("[!.]*")) if folder.is_dir() else ():
            if entry.is_file() and formats.kind_of(entry.name) is not None and entry.suffix != ".txt":
                by_split[entry.name.split(".")[0].split("-")[0]].append(entry)
            elif entry.is_dir() and entry.name in SPLITS:
                by_split[entry.name] += [file for file in sorted(entry.glob("[!.]*")) if formats.kind_of(file.name)]
        if by_split:
            break
    return dict(by_split)


def _chosen(path: Path, split: str | None, names: Sequence[str]) -> str:
    if split is not None:
        if split not in names:
            raise wrong(path, f"there is no split {split!r}; available: {', '.join(names) or 'none'}")
        return split
    usual = next((name for name in SPLITS if name in names), None)
    if usual is None and len(names) != 1:
        found = f"`split` says which of {', '.join(names)}" if names else f"no file of {formats.NAMES} is there"
        raise wrong(path, found)
    return usual or names[0]


def _arrow_files(path: Path) -> list[Path]:
    state = json_lines.loads((path / _ARROW_STATE).read_bytes())
    if state.get("_indices_data_files"):
        raise wrong(path, "the data set is a selection of rows; save it after flatten_indices()")
    return [path / entry["filename"] for entry in state.get("_data_files") or []]


def _batches(part: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if part.suffix == ".parquet":
        with pq.ParquetFile(part) as file:
            yield from file.iter_batches()
        return
    with pa.memory_map(str(part)) as stream:
        yield from pa.ipc.open_stream(stream)
