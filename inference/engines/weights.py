"""Folders of models and adapters, and the fingerprints of their weights for manifests and the result cache."""

import hashlib
from pathlib import Path


def folder_of(source: str, config: str = "config.json", revision: str | None = None) -> Path | None:
    """Return the folder of a model or an adapter, here or in the hub's local cache; None without one."""
    if Path(source).is_dir():
        return Path(source)
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    file = try_to_load_from_cache(source, config, revision=revision)
    return Path(file).parent if isinstance(file, str) else None


def model_sha256(source: str, config: str = "config.json") -> str:
    """Return a local folder's fingerprint, or the cached commit of a hub id.

    A folder's fingerprint is the SHA-256 over a line `<path> <SHA-256 of the file>` for each file, sorted by path.
    Hidden files do not count.

    `config`: a file that each such folder has.
    """
    folder = folder_of(source, config)
    if folder is None:
        raise FileNotFoundError(f"{source}: neither a folder nor a model in the hub's local cache")
    if not Path(source).is_dir():
        return folder.name
    total = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder)
        if not any(part.startswith(".") for part in name.parts):
            with path.open("rb") as file:
                total.update(f"{name.as_posix()} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()
