"""Copies artifacts from one store to another. Their SHA-256 is checked on the way."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from batchyard.errors import ArtifactMissing, ConfigurationError
from store.artifacts import SHARDS, Artifacts

THREADS = 8
"""Copies at once: a call to an object store takes tens of milliseconds."""
_READ_BYTES = 1024 * 1024


def copy(source: Artifacts, target: Artifacts, hashes: Collection[str]) -> set[str]:
    """Copy content. Return the hashes of what the source does not have, or not as it was written.

    Raises:
        UnavailableError: a store cannot be reached, or is full.
    """
    with ThreadPoolExecutor(THREADS) as pool:
        copied = pool.map(partial(_copy, source, target), hashes)
        return {sha256 for sha256, done in zip(hashes, copied, strict=True) if not done}


def _copy(source: Artifacts, target: Artifacts, sha256: str) -> bool:
    try:
        with source.open(sha256) as stream, target.create() as writer:
            shutil.copyfileobj(stream, writer, _READ_BYTES)
    except ArtifactMissing:
        return False
    return True


def refuse_others(source: Artifacts, target: Artifacts) -> None:
    """Raise ConfigurationError if a store has content that `source` has not: two deployments would delete each other's.

    What an interrupted restore has copied may be there.
    """

    def is_filled(shard: str) -> bool:
        return not set(source.names(shard)).issuperset(target.names(shard))

    with ThreadPoolExecutor(THREADS) as pool:
        filled = any(pool.map(is_filled, SHARDS[1:]))
    if filled:
        raise ConfigurationError(
            f"artifact store {target.url} is not empty; name a new data folder with --data, or a new folder or prefix "
            f"with ARTIFACTS_URL"
        )
