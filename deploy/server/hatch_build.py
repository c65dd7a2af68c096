"""What hatchling asks when it builds `batchyard-server`: its requirement, and its modules, which lie elsewhere.

In a source distribution the modules lie beside this file, and version and requirement in PKG-INFO.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

MODULES = ("celeryconfig.py", "inference", "jobs", "recipes", "results", "store", "tasks", "webapp")


class ClientRequirement(MetadataHookInterface):
    """The client in the same version, with the packages that the server needs."""

    def update(self, metadata: dict[str, Any]) -> None:
        metadata["dependencies"] = [f"batchyard[server]=={metadata['version']}"]


class ServerModules(BuildHookInterface[Any]):
    """The modules of the tree, or of a source distribution."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder, is_wheel = Path(self.root), self.target_name == "wheel"
        if version == "editable":  # a path to the tree, by `dev-mode-dirs`
            return
        if not (folder / MODULES[0]).exists():
            folder = folder.parents[1]
        elif not is_wheel:  # a source distribution of a source distribution has all that it has
            return
        files = MODULES if is_wheel else (*MODULES, "CHANGELOG.md", "LICENSE")
        build_data["force_include"] |= {str(folder / name): name for name in files}
