"""Fingerprints of the weights of models and adapters, for manifests and the result cache."""

from __future__ import annotations

import hashlib
from pathlib import Path


def model_sha256(source: str, config: str = "config.json") -> str:
    """Return a local folder's fingerprint, or the cached commit of a hub id.

    A folder's fingerprint is the SHA-256 over a line `<path> <SHA-256 of the file>` for each file, sorted by path.
    Hidden files do not count.

    `config`: a file that each such folder has.

    Raises FileNotFoundError: `source` is neither a folder nor in the local cache.
    """
    folder = Path(source)
    if folder.is_dir():
        total = hashlib.sha256()
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            name = path.relative_to(folder)
            if not any(part.startswith(".") for part in name.parts):
                with path.open("rb") as file:
                    total.update(f"{name.as_posix()} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
        return total.hexdigest()
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(source, config)
    if not isinstance(cached, str):
        raise FileNotFoundError(f"{source}: neither a folder nor a model in the hub's local cache")
    return Path(cached).parent.name
