"""What a local stack runs: its own Redis and Ray unless the settings name others, and one environment for all."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchyard import settings
from batchyard.local import children
from batchyard.local.data_folder import DataFolder
from batchyard.local.process import ChildProcess

PORTS = {"web": 8001, "flower": 5556, "ray": 6380}
OURS = ["worker", "housekeeper", "webhooks", "beat", "flower", "web", "gateway"]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[DataFolder]:
    held = DataFolder(tmp_path / "data")
    held.hold()
    yield held
    held.release()


def children_of(folder: DataFolder, host: str = "127.0.0.1", **changes: str) -> dict[str, ChildProcess]:
    in_force = settings.load(data=folder.path, models=folder.path / "models.toml", **changes)
    return children.of(in_force, folder, host, PORTS)


def test_a_stack_has_a_redis_and_a_ray_of_its_own_which_start_first(folder: DataFolder) -> None:
    stack = children_of(folder)
    assert list(stack) == ["redis", "ray", *OURS]
    for child in stack.values():
        assert child.environment["REDIS_URL"] == f"unix://{folder.short}/redis.sock"
        assert child.environment["RAY_ADDRESS"] == "127.0.0.1:6380"


def test_a_redis_and_a_ray_that_the_settings_name_are_used_as_they_are(folder: DataFolder) -> None:
    stack = children_of(folder, redis_url="redis://away:6379/0", ray_address="away:6380")
    assert list(stack) == OURS
    assert {child.environment["REDIS_URL"] for child in stack.values()} == {"redis://away:6379/0"}
    assert {child.environment["RAY_ADDRESS"] for child in stack.values()} == {"away:6380"}


def test_secrets_of_the_settings_reach_the_services_as_they_are(folder: DataFolder) -> None:
    databases = "lake=sqlite:///lake.db"
    environment = children_of(folder, output_databases=databases, oidc_client_secret="hunter2")["web"].environment
    assert environment["BATCHYARD_OUTPUT_DATABASES"] == databases
    assert environment["BATCHYARD_OIDC_CLIENT_SECRET"] == "hunter2"


def test_only_who_can_read_the_stacks_token_can_use_its_ray(folder: DataFolder) -> None:
    environment = children_of(folder)["ray"].environment
    assert environment["RAY_AUTH_MODE"] == "token"
    token = Path(environment["RAY_AUTH_TOKEN_PATH"])
    assert (token.parent, token.stat().st_mode & 0o777) == (folder.path, 0o600)
    assert len(token.read_text()) == 64
    for child in children_of(folder).values():
        assert Path(child.environment["RAY_AUTH_TOKEN_PATH"]).read_text() == token.read_text(), child.name


@pytest.mark.parametrize("theirs", [{}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "secret"}])
def test_a_cluster_that_the_settings_name_is_joined_as_its_operator_says(
    folder: DataFolder, monkeypatch: pytest.MonkeyPatch, theirs: dict[str, str]
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    for name, value in theirs.items():
        monkeypatch.setenv(name, value)
    environment = children_of(folder, ray_address="away:6380")["worker"].environment
    assert {name: value for name, value in environment.items() if name.startswith("RAY_AUTH_")} == theirs


def test_our_packages_go_before_modules_of_the_same_name_in_the_users_folder(
    folder: DataFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environment = children_of(folder)["worker"].environment
    ours, users = environment["PYTHONPATH"].split(":")[:2]
    assert (Path(ours) / "tasks").is_dir() and users == str(tmp_path)
    assert environment["PYTHONSAFEPATH"] == "1"


def test_only_flower_knows_its_password(folder: DataFolder) -> None:
    stack = children_of(folder)
    assert [name for name, child in stack.items() if "FLOWER_BASIC_AUTH" in child.environment] == ["flower"]
    assert stack["flower"].environment["FLOWER_BASIC_AUTH"] == folder.flower_password()


def test_the_gateway_is_served_where_the_user_says_and_goes_first(folder: DataFolder) -> None:
    stack = children_of(folder, host="0.0.0.0")
    assert {"--host=0.0.0.0", "--port=8001"} <= set(stack["gateway"].argv)
    assert f"--bind=unix:{folder.short}/web.sock" in stack["web"].argv, "nobody passes the gateway by"
    assert f"--web=unix:{folder.short}/web.sock" in stack["gateway"].argv
    assert [name for name, child in stack.items() if child.nice == 0] == ["redis", "beat", "web", "gateway"]
    assert max(stack.values(), key=lambda child: child.nice).name == "flower", "nothing waits for a view"
    assert stack["web"].environment["BATCHYARD_PROXIES"] == "1", "it believes the gateway's word of the client"
    assert stack["web"].environment["BATCHYARD_BEHIND_GATEWAY"] == "true"


def test_workers_do_not_outlive_the_stack(folder: DataFolder) -> None:
    stack = children_of(folder)
    assert [name for name, child in stack.items() if child.orphan_signal == signal.SIGKILL] == OURS[:3]
