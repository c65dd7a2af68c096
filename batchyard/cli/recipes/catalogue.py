"""The recipes of a command's server, or of a local stack, as in GET /v1/recipes."""

import contextlib
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import batchyard
from batchyard.cli import options
from batchyard.client import address

Recipes = list[dict[str, Any]]


def recipes(data: Path | None) -> Recipes:
    """Return the recipes as they are. Raises BatchyardError: the server is away, or a recipe cannot be imported."""
    settings = options.load_settings(data=data)
    if address.server_runs(settings.data):
        return options.connect(data).recipes()
    from batchyard import plugins

    plugins.require_server()
    from recipes import registry

    catalogue = registry.catalogue(settings)
    return [
        {
            "name": recipe.name,
            "summary": recipe.summary,
            "options": recipe.options.model_json_schema(),
            "main": recipe.main,
            "sha256": catalogue.sha256(recipe.name),
        }
        for recipe in catalogue.recipes.values()
    ]


def glance(data: Path | None) -> Recipes:
    """Return the recipes for `--help` and Tab completion, in a tenth of the time that `recipes` takes.

    Importing recipes takes most of a second, so those of a local stack are remembered, in the user's cache folder,
    until a file changes that could change them.
    """
    folder = address.data_folder(data)
    if address.server_runs(folder):
        return options.fetch(folder, "/recipes")
    memory = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "batchyard" / "recipes.json"
    files = _fingerprint(address.environment().get("BATCHYARD_RECIPES") or "")
    try:
        remembered = json.loads(memory.read_text())
        if remembered["files"] == files:
            return list(remembered["recipes"])
    except (OSError, ValueError, LookupError, TypeError):
        pass  # never written, or by another version
    fetched = recipes(data)
    with contextlib.suppress(OSError):  # a home that cannot be written makes it slower only
        memory.parent.mkdir(parents=True, exist_ok=True)
        draft = memory.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps({"files": files, "recipes": fetched}))
        draft.replace(memory)
    return fetched


def _fingerprint(folder: str) -> str:
    """Return a hash over all sources of recipes: this package, installed ones, the folder."""
    root = Path(batchyard.__file__).parents[1]
    files = [*(root / "batchyard/recipes").rglob("*.py"), *(root / "recipes").rglob("*.py")]
    files += Path(folder).resolve().glob("[!.]*.py") if folder else ()
    # Installing a package changes its folder. The working folder changes all the time.
    installed = [path for entry in sys.path if (path := Path(entry)).is_dir() and path.resolve() != Path.cwd()]
    states = [(str(path), (status := path.stat()).st_mtime_ns, status.st_size) for path in sorted([*files, *installed])]
    state = [batchyard.__version__, sys.version, *states]
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()
