"""Which model it is: what the manifest says of it."""

from __future__ import annotations

import hashlib
from pathlib import Path


def model_sha256(source: str) -> str:
    """A local folder's fingerprint; for a hub id, the commit of the snapshot in the local cache.

    The folder's is the SHA-256 over a line `<path> <SHA-256 of the file>` for each of its files, sorted by path, hidden
    files left out.

    Raises:
        FileNotFoundError: no such folder and no such snapshot.
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

    config = try_to_load_from_cache(source, "config.json")
    if not isinstance(config, str):
        raise FileNotFoundError(f"{source}: neither a folder nor a model in the hub's local cache")
    return Path(config).parent.name
