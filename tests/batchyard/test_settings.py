"""Settings and models.toml: what is wrong is named, with where and what would be right."""

from __future__ import annotations

import ssl
from pathlib import Path

import kombu
import pytest

from batchyard import durations, settings
from batchyard.client import address
from batchyard.errors import ConfigurationError
from inference import catalog


@pytest.fixture(autouse=True)
def an_empty_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for field in settings.Settings.model_fields:
        monkeypatch.delenv(settings.environment_name(field), raising=False)


def test_an_unknown_setting_is_refused_with_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHYARD_MAX_SEGMENT", "3")
    with pytest.raises(ConfigurationError, match=r"BATCHYARD_MAX_SEGMENT: did you mean BATCHYARD_MAX_SEGMENTS\?"):
        settings.load()


def test_an_unknown_setting_in_the_env_file_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("BATCHYARD_DATAA=/x\n")
    with pytest.raises(ConfigurationError, match=r"BATCHYARD_DATAA: did you mean BATCHYARD_DATA\?"):
        settings.load()


@pytest.mark.parametrize("name", ["BATCHYARD_MAX_SEGMENTS", "BATCHYARD_MIN_WINDOW", "BATCHYARD_LEASE_SECONDS"])
@pytest.mark.parametrize("value", ["0", "-1", "many", ""])
def test_a_value_that_cannot_be_used_names_its_variable(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=f"{name}: "):
        settings.load()


@pytest.mark.parametrize(
    "value",
    [
        "postgresql://me:hunter2@host/db",
        "lake=sqlite://, ware=me:hunter2@h",
        "a=p://x:hunter2,y@h",
        "a=postgresql://me:p@hunter2@host/db",
    ],
)
def test_a_database_that_cannot_be_used_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("BATCHYARD_OUTPUT_DATABASES", value)
    with pytest.raises(ConfigurationError, match=r"BATCHYARD_OUTPUT_DATABASES: entry \d is no database") as error:
        settings.load()
    assert "hunter2" not in str(error.value)


def test_databases_are_known_by_name_and_shown_without_their_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHYARD_OUTPUT_DATABASES", "lake=sqlite:///lake.db, ware=postgresql://me:hunter2@host/db?a=b")
    loaded = settings.load()
    urls = {"lake": "sqlite:///lake.db", "ware": "postgresql://me:hunter2@host/db?a=b"}
    assert loaded.output_database_urls == urls and "hunter2" not in repr(loaded)


def test_the_environment_wins_over_the_env_file_and_the_command_line_over_both(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".env").write_text("BATCHYARD_MAX_SEGMENTS=3\nBATCHYARD_MAX_REQUESTS=30\nBATCHYARD_LEASE_SECONDS=300\n")
    monkeypatch.setenv("BATCHYARD_MAX_SEGMENTS", "4")
    monkeypatch.setenv("BATCHYARD_MAX_REQUESTS", "40")
    loaded = settings.load(max_segments=5)
    assert (loaded.max_segments, loaded.max_requests, loaded.lease_seconds) == (5, 40, 300)


def test_the_variables_of_the_terminal_commands_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHYARD_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("BATCHYARD_API_KEY", "by-0-0")
    settings.load()


@pytest.mark.parametrize(("text", "expected"), [("10s", 10), ("10m", 600), ("24h", 86400), ("7d", 604800)])
def test_durations_are_seconds(text: str, expected: int) -> None:
    assert durations.seconds(text) == expected


@pytest.mark.parametrize("text", ["", "0h", "h", "1.5h", "-1h", "1w", "24", "24h ", "२h", "1h30m"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="'24h'"):
        durations.seconds(text)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "no models; add a table"),
        ("[models", "not valid TOML"),
        ("[modles.a]\nengine='vllm'", "unknown key 'modles'"),
        ("[models.a]\nengin='vllm'", "models.a.engin: unknown key; did you mean engine?"),
        ("[models.a]\nengine='vlm'\nsource='a/b'", "models.a.engine: must be 'auto', 'vllm'"),
        ("[models.a]\nengine='vllm'", "models.a.source: missing"),
        ("[models.a]\nengine='vllm'\nsource='./nowhere'", "models.a.source: no folder"),
        ("[models.a]\nengine='vllm'\nsource='a/b'\nreplicas=0", "models.a.replicas: 0 is not at least 1"),
        ("[models.a]\nengine='echo'", "set BATCHYARD_ALLOW_SIMULATED=1"),
    ],
)
def test_a_wrong_models_file_names_the_file_the_key_and_the_remedy(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "models.toml"
    file.write_text(content)
    with pytest.raises(ConfigurationError) as caught:
        catalog.load(file)
    assert caught.value.message.startswith(f"{file}: ")
    assert says in caught.value.message


def test_a_models_file_that_is_not_there_names_how_to_choose_one(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"no such file; name the models file with --models or BATCHYARD_MODELS"
    ):
        catalog.load(tmp_path / "models.toml")


def test_a_change_of_any_value_changes_the_configuration_hash(tmp_path: Path) -> None:
    def hash_of(content: str) -> str:
        (tmp_path / "models.toml").write_text(content)
        return catalog.load(tmp_path / "models.toml")["a"].config_sha256

    base = "[models.a]\nengine='vllm'\nsource='a/b'\n"
    assert hash_of(base) == hash_of(base + "replicas=1\n")
    assert hash_of(base) != hash_of(base + "[models.a.engine_args]\nmax_model_len=1\n")


def test_a_path_of_the_env_file_begins_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text(
        "BATCHYARD_DATA=~/by-data\nBATCHYARD_RECIPES=~/recipes\nBATCHYARD_AUDIT=~/audit.jsonl\nBATCHYARD_MODELS=~x/m.toml\n"
    )
    in_force = settings.load()
    assert in_force.data == tmp_path / "home/by-data" == address.data_folder(None)
    assert (in_force.recipes, in_force.audit) == (f"{tmp_path}/home/recipes", f"{tmp_path}/home/audit.jsonl")
    assert in_force.models == Path("~x/m.toml"), "a name that only begins so"


@pytest.mark.parametrize(
    ("url", "checked"),
    [
        ("rediss://redis.example:6379/0", "REQUIRED"),
        ("rediss://redis.example:6379/0?ssl_ca_certs=/etc/ca.pem", "REQUIRED"),
        ("rediss://redis.example:6379/0?ssl_cert_reqs=none", "NONE"),
    ],
)
def test_celery_checks_the_certificate_of_a_redis_server_unless_the_url_says_otherwise(url: str, checked: str) -> None:
    with kombu.Connection(settings.load(redis_url=url).broker_url) as connection:
        assert connection.ssl["ssl_cert_reqs"] == getattr(ssl, f"CERT_{checked}")
