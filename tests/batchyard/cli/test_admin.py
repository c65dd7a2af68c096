"""Commands of an administrator: migrations, keys, projects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from store import keys
from store.database import Database
from tests.support.stacks import RunningStack, a_chat
from tests.support.terminal import Result, batchyard


def test_migrate_makes_an_admin_key_where_none_is_in_use(tmp_path: Path, database_url: str) -> None:
    def migrate() -> str:
        return batchyard("migrate", "--admin-key", folder=tmp_path, DATABASE_URL=database_url).stdout

    file = tmp_path / "data" / "admin.key"
    file.parent.mkdir()
    file.write_text("of another database")
    assert str(file) in migrate()
    assert file.stat().st_mode & 0o777 == 0o600
    database = Database(database_url)
    with database.read() as session:
        admin = keys.authenticate(session, file.read_text())
        assert admin is not None and admin.admin
        assert keys.named(session, admin.project_id, {admin.key_id}) == {admin.key_id: "admin.key"}
    file.unlink()
    assert migrate() == ""
    assert not file.exists()
    with database.write() as session:
        keys.revoke(session, admin.key_id)
    database.close()
    assert str(file) in migrate()


def test_a_new_key_works_and_sees_its_own_project_only(stack: RunningStack, tmp_path: Path) -> None:
    created = batchyard("key", "create", "--project", "cli", "--data", stack.data, folder=tmp_path)
    assert created.returncode == 0, created.stderr
    key = created.stdout.strip()
    result = batchyard("list", "--json", folder=tmp_path, BATCHYARD_URL=stack.url, BATCHYARD_API_KEY=key)
    assert json.loads(result.stdout) == []


def test_keys_are_listed_without_their_secrets_and_revoked_by_id(stack: RunningStack, tmp_path: Path) -> None:
    def key(*arguments: str) -> Result:
        return batchyard("key", *arguments, "--data", stack.data, folder=tmp_path)

    new_key = json.loads(key("create", "--project", "revoked", "--json").stdout)
    assert new_key["key"].startswith(f"by-{new_key['id']}-")
    listed = key("list", "--project", "revoked")
    assert new_key["id"] in listed.stdout
    assert new_key["key"].rpartition("-")[2] not in listed.stdout
    revoked = key("revoke", new_key["id"])
    assert revoked.stdout == f"key {new_key['id']} of project revoked is revoked\n"
    recorded = cast(Any, stack.client.get("/audit", cast_to=object))["data"]
    did = [(event["type"], event["by"]["key_id"]) for event in recorded if event["data"]["id"] == new_key["id"]]
    assert did == [("key.revoked", "terminal"), ("key.created", "terminal")]
    again = json.loads(key("revoke", new_key["id"], "--json").stdout)
    assert again in json.loads(key("list", "--json").stdout)
    refused = batchyard("list", folder=tmp_path, BATCHYARD_URL=stack.url, BATCHYARD_API_KEY=new_key["key"])
    assert refused.returncode == 4
    assert "No API key found with id 'nope'" in key("revoke", "nope").stderr
    assert "a name has 1 to 128 characters" in key("create", "--project", "").stderr


def test_keys_and_projects_are_those_of_the_server_that_is_named(stack: RunningStack, tmp_path: Path) -> None:
    server = {"BATCHYARD_URL": stack.url, "BATCHYARD_API_KEY": stack.key}

    def run(*arguments: str) -> str:
        result = batchyard(*arguments, folder=tmp_path, **server)
        assert result.returncode == 0, result.stderr
        return result.stdout

    new_key = json.loads(run("key", "create", "--project", "far", "--expires-after", "1d", "--json"))
    assert run("list", "--json") is not None
    own = {**server, "BATCHYARD_API_KEY": new_key["key"]}
    assert batchyard("list", "--json", folder=tmp_path, **own).stdout == "[]\n"
    assert new_key["id"] in run("key", "list", "--project", "far")
    assert run("project", "set", "far", "--tier", "basic", "--max-segments", "3").startswith(
        "far: tier basic, max segments 3, no cache"
    )
    assert " far " in run("project", "list")
    assert run("project", "budget", "far") == "far: no budget\n"
    assert run("project", "budget", "far", "10 EUR").startswith("far: 10.00 EUR a month, warning at 80 %")
    assert run("project", "budget", "far", "none") == "far: no budget\n"
    assert run("key", "revoke", new_key["id"]) == f"key {new_key['id']} of project far is revoked\n"
    assert run("project", "erase", "far", "--yes") == "far is being erased\n"
    assert "has no project 'nope'" in batchyard("project", "set", "nope", folder=tmp_path, **server).stderr
    assert list(tmp_path.iterdir()) == []


ON_DATA = (
    ("key", "create", "--project", "p"),
    ("key", "list"),
    ("key", "revoke", "id"),
    ("project", "list"),
    ("project", "set", "p", "--tier", "basic"),
    ("project", "erase", "p", "--yes"),
    ("project", "budget", "p", "1 EUR"),
    ("backup", "copy"),
)


@pytest.mark.parametrize("command", ON_DATA, ids=" ".join)
def test_no_command_makes_a_data_folder_where_there_is_none(command: tuple[str, ...], tmp_path: Path) -> None:
    for folder in ([], ["--data", "typo"]):
        refused = batchyard(*command, *folder, folder=tmp_path)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "there is no database" in refused.stderr and "--data" in refused.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [("migrate", "--admin-key"), ("restore", "copy")], ids=" ".join)
def test_a_new_data_folder_is_made_only_where_somebody_has_named_it(command: tuple[str, ...], tmp_path: Path) -> None:
    refused = batchyard(*command, folder=tmp_path)
    assert (refused.returncode, "there is no database" in refused.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []
    assert "there is no database" not in batchyard(*command, "--data", "new", folder=tmp_path).stderr


@pytest.mark.parametrize("command", [("migrate",), ("backup", "copy"), ("restore", "copy"), ("demo",)], ids=" ".join)
def test_a_command_on_this_machines_data_refuses_where_a_server_is_named(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    refused = batchyard(*command, folder=tmp_path, BATCHYARD_URL="http://127.0.0.1:1")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "BATCHYARD_URL names the server http://127.0.0.1:1" in refused.stderr
    assert "unset BATCHYARD_URL" in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_would_start_a_stack_leaves_no_data_folder_where_there_are_no_models(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(a_chat("a", "hello")) + "\n")
    refused = batchyard("run", "-i", "in.jsonl", "-o", "out.jsonl", folder=tmp_path)
    assert (refused.returncode, "models.toml: no such file" in refused.stderr) == (2, True)
    assert not (tmp_path / "data").exists()


def test_a_budget_in_another_currency_than_the_tariffs_is_refused(stack: RunningStack, tmp_path: Path) -> None:
    models = stack.data.parent / "models.toml"
    for where in (["--data", stack.data, "--models", models], []):
        server = {} if where else {"BATCHYARD_URL": stack.url, "BATCHYARD_API_KEY": stack.key}
        refused = batchyard("project", "budget", "default", "100 USD", *where, folder=tmp_path, **server)
        assert (refused.returncode, refused.stdout) == (4, "")
        assert "tariffs are in EUR" in refused.stderr
        assert batchyard("project", "budget", "default", *where, folder=tmp_path, **server).stdout.endswith(
            "no budget\n"
        )


def test_a_projects_result_cache_and_limit_of_stored_bytes_are_set_and_removed(tmp_path: Path) -> None:
    def project(*arguments: str) -> Result:
        return batchyard("project", *arguments, "--data", tmp_path, folder=tmp_path)

    batchyard("key", "create", "--project", "search", "--data", tmp_path, folder=tmp_path)
    result = project("set", "search", "--cache-bytes", "1000000")
    assert (
        result.stdout
        == "search: tier none, max segments no limit, cache of 1000000 bytes, live requests of every tier\n"
    )
    assert "1000000" in project("list").stdout
    assert project("set", "search", "--max-stored-bytes", "5000").stdout.endswith(", files of at most 5000 bytes\n")
    assert (
        json.loads(project("set", "search", "--max-stored-bytes", "none", "--json").stdout)["max_stored_bytes"] is None
    )
    assert "'5 GB' is not a number of bytes" in project("set", "search", "--max-stored-bytes", "5 GB").stderr
    assert json.loads(project("set", "search", "--no-cache", "--json").stdout)["cache_bytes"] is None


def test_a_project_keeps_nothing_for_long_and_is_erased(tmp_path: Path) -> None:
    def project(*arguments: str) -> Result:
        return batchyard("project", *arguments, "--data", tmp_path, folder=tmp_path)

    batchyard("key", "create", "--project", "search", "--admin", "--data", tmp_path, folder=tmp_path)
    result = project("set", "search", "--zero-retention", "30")
    assert result.stdout.endswith(", all deleted 30 minutes after its end\n")
    assert (
        json.loads(project("set", "search", "--no-zero-retention", "--json").stdout)["zero_retention_minutes"] is None
    )
    assert "no other project has an admin key" in project("erase", "search", "--yes").stderr
    batchyard("key", "create", "--project", "operators", "--admin", "--data", tmp_path, folder=tmp_path)
    assert project("erase", "search", "--yes").stdout == "search is being erased\n"
    assert json.loads(project("list", "--json").stdout)[0]["erasing_at"] is not None
    assert (
        "is being erased"
        in batchyard("key", "create", "--project", "search", "--data", tmp_path, folder=tmp_path).stderr
    )


def test_a_projects_live_requests_are_limited_to_a_tier(tmp_path: Path) -> None:
    def project(*arguments: str) -> Result:
        return batchyard("project", *arguments, "--data", tmp_path, folder=tmp_path)

    batchyard("key", "create", "--project", "nightly", "--data", tmp_path, folder=tmp_path)
    assert project("set", "nightly", "--live-tier", "flex").stdout.endswith("live requests of tier flex\n")
    assert json.loads(project("list", "--json").stdout)[0]["live_tier"] == "flex"
    assert project("set", "nightly", "--live-tier", "none").stdout.endswith("no live requests\n")
    assert project("set", "nightly", "--live-tier", "all").stdout.endswith("live requests of every tier\n")
    assert project("set", "nightly", "--live-tier", "gold").returncode == 2


@pytest.mark.parametrize("tokens", ["-5", str(10**30), "many"])
def test_a_cap_that_cannot_be_is_refused(tokens: str, tmp_path: Path) -> None:
    command = ("key", "create", "--project", "a", f"--max-tokens={tokens}", "--data", tmp_path)
    refused = batchyard(*command, folder=tmp_path)
    assert (refused.returncode, "--max-tokens" in refused.stderr) == (2, True)
