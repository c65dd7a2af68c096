"""The clients of clients.toml: their environments, and their programs with the settings that name a stack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.support.stacks import ROOT, RunningStack

FOLDER = Path(__file__).parent
CLIENTS: Mapping[str, dict[str, Any]] = tomllib.loads((FOLDER / "clients.toml").read_text())


def bin_folder(client: str) -> Path:
    """Return the folder of programs of a client's environment: its own, or .venv if that has the client as pinned.

    The test is skipped if there is neither.
    """
    own, packages = ROOT / ".venv-foreign" / client, CLIENTS[client].get("packages")
    if (own / "packages.txt").exists():
        return own / ("node_modules/.bin" if packages is None else "bin")
    if packages is not None and all(map(_is_installed, packages)):
        return Path(sys.executable).parent
    pytest.skip("`make foreign` makes its environment")


def environment(stack: RunningStack, home: Path) -> dict[str, str]:
    """Return the variables by which clients find a server and its key. They keep their own files in `home`."""
    connection = {"conn_type": "openai", "password": stack.key, "host": f"{stack.url}/v1"}
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "OPENAI_BASE_URL": f"{stack.url}/v1",
        "OPENAI_API_KEY": stack.key,
        "ANTHROPIC_BASE_URL": stack.url,
        "ANTHROPIC_API_KEY": stack.key,
        "AIRFLOW_HOME": str(home / "airflow"),
        "AIRFLOW_CONN_BATCHYARD": json.dumps(connection),
        "LANGASYNC_BATCH_POLL_INTERVAL": "0.2",
        # What they would fetch or send at their start: these tests have no network.
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "HF_HUB_OFFLINE": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "TELEMETRY_ENABLED": "0",
        "PROMPTFOO_DISABLE_TELEMETRY": "1",
        "PROMPTFOO_DISABLE_UPDATE": "1",
    }


def answers(client: str, stack: RunningStack, prompts: list[str], home: Path, **variables: str) -> dict[str, list[str]]:
    """Run a client's program; return its answers to the prompts, by the way that it got them."""
    folder = bin_folder(client)
    variables |= environment(stack, home)
    if "npm" in CLIENTS[client]:
        variables |= {"PATH": f"{folder}:{variables['PATH']}", "NODE_PATH": str(folder.parent)}
        command = [folder / "node", FOLDER / "programs" / f"{client}.cjs"]
    else:
        # Without -P the program would find itself in place of the package after which it is named.
        command = [folder / "python", "-P", FOLDER / "programs" / f"{client}.py"]
    ended = subprocess.run(
        [*command, json.dumps(prompts)],
        env=variables,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    values: dict[str, list[str]] = json.loads(ended.stdout.splitlines()[-1])
    return values


def _is_installed(package: str) -> bool:
    name, _, version = package.partition("==")
    try:
        return metadata.version(name) == version
    except metadata.PackageNotFoundError:
        return False
