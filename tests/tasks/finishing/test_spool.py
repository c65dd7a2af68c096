"""A spool gives texts back in the order of their lines, whatever order they came in and however long they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchyard.errors import UnavailableError
from store.artifacts import Artifacts
from tasks.finishing import spool


def written(folder: Path, texts: dict[int, str], parts: int = 1, keep: set[int] | None = None) -> bytes:
    """What a spool of these texts, added in this order and in so many parts, writes."""
    artifacts = Artifacts(f"file://{folder}")
    lines = list(texts)
    with spool.opened() as opened:
        for part in np.array_split(np.array(lines, np.int64), parts):
            opened.add(part, pa.array([texts[line] for line in part.tolist()], pa.string()))
        chosen = None if keep is None else np.isin(opened.lines(), list(keep))
        with artifacts.create() as file:
            number = opened.write(file, chosen)
    assert number == len(texts if keep is None else keep)
    return artifacts.read(file.sha256)


@settings(max_examples=30)
@given(
    texts=st.dictionaries(st.integers(1, 10**9), st.text(alphabet="aü\n", max_size=6), min_size=1, max_size=12),
    parts=st.integers(1, 4),
    read=st.integers(1, 12),
    data=st.data(),
)
def test_each_text_is_written_once_at_its_place(
    texts: dict[int, str], parts: int, read: int, data: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    keep = data.draw(st.none() | st.sets(st.sampled_from(sorted(texts))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool, "READ_BYTES", read)
        content = written(tmp_path_factory.mktemp("spool"), texts, parts, keep)
    chosen = [texts[line] for line in sorted(texts) if keep is None or line in keep]
    assert content == "".join(text + "\n" for text in chosen).encode()


def test_a_slice_of_a_column_is_read_from_its_own_offset(tmp_path: Path) -> None:
    column = pa.array(["zero", "one", "two", "three"], pa.string()).slice(1, 2)
    artifacts = Artifacts(f"file://{tmp_path}")
    with spool.opened() as opened:
        opened.add(np.array([9, 4]), column)
        assert (opened.lines().tolist(), opened.sizes().tolist()) == ([9, 4], [3, 3])
        with artifacts.create() as file:
            opened.write(file)
    assert artifacts.read(file.sha256) == b"two\none\n"


def test_a_full_disk_is_named_as_such() -> None:
    with Path("/dev/full").open("wb") as full, pytest.raises(UnavailableError, match="no room for the lines to sort"):
        spool.Spool(full).add(np.array([1]), pa.array(["x" * 100_000], pa.string()))
