"""Settings, read once from the environment (and `.env`) and passed down."""

import ipaddress
import os
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

from dotenv import dotenv_values
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveInt,
    SecretStr,
    StringConstraints,
    ValidationError,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from batchyard import durations
from batchyard.errors import ConfigurationError
from batchyard.schema_words import invalid_values
from batchyard.wording import nearest

PREFIX = "BATCHYARD_"


def _home(value: Any) -> Any:
    """Return a path with `~` replaced, which no shell does in `.env` files and unit files."""
    if str(value) != "~" and not str(value).startswith("~/"):
        return value
    try:
        return str(Path(value).expanduser())
    except RuntimeError as error:
        raise ValueError(f"{value}: this user has no home folder; write the whole path") from error


Folder = Annotated[Path, BeforeValidator(_home)]
PathText = Annotated[str, BeforeValidator(_home)]
Duration = Annotated[
    PositiveInt,
    BeforeValidator(
        lambda value: durations.seconds(value) if isinstance(value, str) and not value.isdigit() else value
    ),
]


def readable(read: Callable[[Any], object]) -> AfterValidator:
    """Return a validator of texts, or secrets, that `read` can read; it keeps them as they are."""

    def keep(text: Any) -> Any:
        read(text)
        return text

    return AfterValidator(keep)


def tiers(text: str) -> dict[str, int]:
    """Return the seconds of each tier of `name=duration,…`. Raises ValueError."""
    seconds = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        name, _, duration = entry.partition("=")
        if not name or not duration:
            raise ValueError(f"{entry!r} is no tier; write name=duration, separated by commas, such as premium=12h")
        seconds[name] = durations.seconds(duration)
    return seconds


def _prefixes(value: str) -> str:
    for prefix in input_prefixes(value):
        scheme, separator, rest = prefix.partition("://")
        if not separator or not rest.strip("/") or scheme in ("http", "https"):
            raise ValueError(
                f"{prefix!r} is no prefix of a bucket; write scheme://bucket/folder/, such as s3://mine/in/"
            )
    return value


def output_databases(text: str) -> dict[str, str]:
    """Return the SQLAlchemy URL of each database of `name=url,…`. Raises ValueError, without what may be a password."""
    urls = {}
    for number, entry in enumerate(filter(None, map(str.strip, text.split(","))), 1):
        name, _, url = entry.partition("=")
        login = url.partition("://")[2].partition("/")[0]  # what follows its first @ is taken for the host
        if not re.fullmatch(r"[\w.-]+", name) or "://" not in url or login.count("@") > 1:
            raise ValueError(
                f"entry {number} is no database; write name=URL, separated by commas, such as "
                "warehouse=postgresql+psycopg://user:password@host/database; in a password, write %2C for a comma and "
                "%40 for an @"
            )
        urls[name] = url
    return urls


def sqlite_url(file: Path) -> str:
    """Return the SQLAlchemy URL of a SQLite file, whose name may have any character."""
    return f"sqlite:///{quote(str(file))}"


def folder_url(folder: Path) -> str:
    """Return the fsspec URL of a folder: with its path as it is, since nothing is decoded (`store.artifacts`)."""
    return f"file://{folder}"


def input_prefixes(text: str) -> list[str]:
    return [prefix for part in text.split(",") if (prefix := part.strip())]


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks(text: str) -> list[Network]:
    """Return the networks of a text with commas between them; an address is a network of one. Raises ValueError."""
    return [ipaddress.ip_network(entry) for part in text.split(",") if (entry := part.strip())]


def group_projects(text: str) -> list[tuple[str, str]]:
    """Return the groups and projects of `group=project,…`, in this order. Raises ValueError."""
    pairs = []
    for entry in filter(None, map(str.strip, text.split(","))):
        group, _, project = entry.rpartition("=")  # a group may be a name of LDAP: cn=ml
        if not group or not project:
            raise ValueError(f"{entry!r} opens no project; write group=project, separated by commas")
        pairs.append((group.strip(), project.strip()))
    return pairs


def _issuer(value: str) -> str:
    if value and not re.match(r"https://[^/]|http://(localhost|127\.0\.0\.1|\[::1\])([:/]|$)", value):
        raise ValueError(f"{value!r} must begin with https://; only a server on this machine may have http://")
    return value


def _local_path(value: str) -> str:
    if value and not re.fullmatch(r"/(?![/\\])[!-~]*", value):
        raise ValueError(f"{value!r} is no path of this server, such as /oauth2/sign_out")
    return value


TiersText = Annotated[str, readable(tiers)]
NetworksText = Annotated[str, readable(networks)]
GroupProjectsText = Annotated[str, readable(group_projects)]
OutputDatabases = Annotated[SecretStr, readable(lambda secret: output_databases(secret.get_secret_value()))]


class Settings(BaseSettings):
    """Each field is one environment variable: `BATCHYARD_<NAME>`, or its alias."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=".env", extra="ignore", frozen=True, populate_by_name=True
    )

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]{0,62}$")] = Field(
        "batchyard", description="name of the deployment, used by Flower for its workers"
    )
    data: Folder = Field(Path("data"), description="data folder of a local stack")
    models: Folder = Field(Path("models.toml"), description="the models file")
    recipes: PathText = Field("", description="folder of Python files with your own recipes, rewards and gates")
    redis_url: str = Field(
        "redis://127.0.0.1:6379/0",
        alias="REDIS_URL",
        description="Redis-protocol server for messages and live progress (`up` starts its own)",
    )
    database_url: str = Field("", alias="DATABASE_URL", description="SQLAlchemy URL; empty: SQLite in the data folder")
    artifacts_url: str = Field(
        "",
        alias="ARTIFACTS_URL",
        description="fsspec URL of the artifact store; empty: a folder in the data folder",
    )
    ray_address: str = Field(
        "auto", alias="RAY_ADDRESS", description="`host:port` of the Ray cluster (`up` starts its own)"
    )
    ray_ship_code: bool = Field(False, description="send Batchyard's code to Ray nodes that lack it")
    max_file_bytes: PositiveInt = Field(200 * 1024 * 1024, description="maximum upload, bytes")
    max_line_bytes: PositiveInt = Field(16 * 1024 * 1024, description="maximum line of a file, bytes")
    max_requests: PositiveInt = Field(50_000, description="maximum requests in a file")
    max_embedding_inputs: PositiveInt = Field(50_000, description="maximum embedding inputs in a file")
    requests_per_minute: PositiveInt = Field(6000, description="maximum HTTP requests per key and minute")
    live_requests_per_minute: PositiveInt = Field(6000, description="maximum live requests per key and minute")
    live_tokens_per_minute: PositiveInt = Field(
        10_000_000, description="maximum tokens of live requests per key and minute"
    )
    live_requests_at_once: PositiveInt = Field(
        1000, description="maximum concurrent live requests per key and gateway, including streams"
    )
    live_start_seconds: Duration = Field(
        60, description="maximum wait of a live request for its engine to start, seconds or `1m`"
    )
    flex_wait_seconds: Duration = Field(60, description="maximum wait of a live request of tier flex, seconds or `1m`")
    upload_bytes_per_minute: PositiveInt = Field(4 * 1024**3, description="maximum upload per key and minute, bytes")
    transfer_pause_seconds: Duration = Field(
        30,
        description="maximum pause of a client within a request or response, seconds or `1m`",
    )
    transfer_bytes_per_second: PositiveInt = Field(
        4096, description="minimum average speed of a client, bytes per second; it earns further pauses"
    )
    body_memory_bytes: PositiveInt = Field(
        256 * 1024 * 1024,
        description="maximum memory of a gateway for request bodies, bytes; one key may use a quarter",
    )
    max_bytes_in_flight: PositiveInt = Field(
        20 * 1024**3, description="maximum input of a project's unfinished batches, bytes"
    )
    max_stored_bytes: PositiveInt = Field(
        100 * 1024**3,
        description="maximum files of a project, outputs included, bytes; a project may have its own limit",
    )
    max_unvalidated: PositiveInt = Field(
        1000, description="maximum batches and jobs of a project that await validation"
    )
    min_window: Duration = Field(600, description="minimum completion window, seconds or `10m`")
    max_window: Duration = Field(7 * 86400, description="maximum completion window, seconds or `7d`")
    max_segments: PositiveInt = Field(
        2,
        description="maximum concurrent engine-filling segments, over all models and workers",
    )
    fair_share: float = Field(
        0.25,
        ge=0,
        le=1,
        description="part of the capacity shared evenly among busy projects; the rest serves the earliest deadlines",
    )
    tiers: TiersText = Field(
        "free=72h,basic=24h,premium=12h,enterprise=6h",
        description="tiers of projects and when their batches are due; without a tier, at the deadline",
    )
    admission: Literal["accept", "refuse"] = Field(
        "accept", description="`accept` a batch that will miss its deadline and flag it, or `refuse` it with 429"
    )
    segment_requests: PositiveInt = Field(
        10_000, description="maximum requests in a segment; the model's measured speed sets the number"
    )
    max_items: PositiveInt = Field(1_000_000, description="maximum items in a job")
    max_item_requests: PositiveInt = Field(1000, description="maximum requests of one item of a job")
    job_window_bytes: PositiveInt = Field(
        64 * 1024 * 1024, description="maximum texts of a job's items in memory, bytes"
    )
    judge_processes: PositiveInt = Field(2, description="processes that run the rewards and gates of jobs")
    judge_seconds: PositiveInt = Field(
        10, description="maximum time of one call of a reward or gate, or of one step of a recipe"
    )
    tool_processes: PositiveInt = Field(16, description="maximum concurrent calls of tools")
    tool_sandbox: str = Field(
        "", description="command line that starts the process of the tools, such as `bwrap …`; empty: none"
    )
    lease_seconds: PositiveInt = Field(30, description="time after which the segment of a silent worker runs again")
    segment_attempts: PositiveInt = Field(3, description="attempts of a segment before its requests get error lines")
    request_timeout: Duration = Field(600, description="maximum time of a request in an engine, seconds or `10m`")
    engine_start_timeout: Duration = Field(900, description="maximum time for an engine to start, seconds or `15m`")
    engine_idle_seconds: PositiveInt = Field(600, description="time after which an idle engine stops")
    housekeeping_seconds: PositiveInt = Field(
        2, description="interval at which beat checks leases, expiry and lost messages"
    )
    alive_file: PathText = Field("", description="file that a Celery worker touches every ten seconds; empty: none")
    forecast_seconds: PositiveInt = Field(2, description="interval at which ETAs and SLA states are updated")
    allow_simulated: bool = Field(False, description="allow models with engine `echo`, whose answers are simulated")
    trust_administrators: bool = Field(
        False,
        description="let administrators set model keys over HTTP that run commands, load code or read files",
    )
    results_seconds: Duration = Field(
        86400,
        description="time after the end in which `/results` returns answers, seconds or `24h`",
    )
    garbage_grace_seconds: Duration = Field(
        3600, description="minimum age at which unreferenced content is deleted, seconds or `1h`"
    )
    retention: Duration = Field(
        90 * 86400,
        description="age at which ended work is deleted, and records of runs, files and revoked keys, seconds or `90d`",
    )
    events_retention: Duration = Field(
        30 * 86400,
        description="time after which the events of ended work and webhook deliveries are deleted, seconds or `30d`",
    )
    webhooks_allow_private: bool = Field(False, description="allow webhooks to private addresses and plain `http`")
    input_prefixes: Annotated[str, AfterValidator(_prefixes)] = Field(
        "",
        description="fsspec URLs of readable inputs, comma-separated, such as `s3://bucket/{project}/`; empty: none",
    )
    output_prefixes: Annotated[str, AfterValidator(_prefixes)] = Field(
        "",
        description="URLs that step `export` may write to, comma-separated, as for inputs, and `table://NAME/SCHEMA/`; "
        "empty: none",
    )
    output_databases: OutputDatabases = Field(
        SecretStr(""),
        description="databases of these tables, comma-separated: `NAME=` and an SQLAlchemy URL; empty: none",
    )
    proxies: NonNegativeInt = Field(
        0,
        description="number of proxies in front of the web app; they set `X-Forwarded-For` and `X-Forwarded-Proto`",
    )
    trace_requests: float = Field(
        0.01, ge=0, le=1, description="share of requests with a span of their own, if OTEL_* enables traces"
    )
    behind_gateway: bool = Field(
        False, description="the last of these proxies is the gateway (set by `up` and the compose file)"
    )
    identity_proxies: NetworksText = Field(
        "",
        description="addresses and networks (CIDR) of proxies that sign people in, comma-separated; empty: none",
    )
    user_header: str = Field("X-Forwarded-User", description="header with the user's permanent name")
    email_header: str = Field("X-Forwarded-Email", description="header with the user's display name")
    groups_header: str = Field("X-Forwarded-Groups", description="header with the user's groups, comma-separated")
    group_projects: GroupProjectsText = Field(
        "",
        description="projects that groups may use without a key: `group=project,…`; `*` is every signed-in user",
    )
    admin_groups: str = Field("", description="groups of administrators, comma-separated")
    oidc_issuer: Annotated[str, AfterValidator(_issuer)] = Field(
        "", description="URL of the OpenID provider for sign-in (extra `oidc`); empty: none"
    )
    oidc_client_id: str = Field("", description="client id at the provider")
    oidc_client_secret: SecretStr = Field(SecretStr(""), description="client secret at the provider")
    oidc_client_secret_file: PathText = Field("", description="file with the client secret, in place of the secret")
    oidc_scopes: str = Field("openid profile email", description="scopes to request from the provider")
    oidc_groups_claim: str = Field("groups", description="claim of the ID token that lists the user's groups")
    sign_out_path: Annotated[str, AfterValidator(_local_path)] = Field(
        "", description="path to open after sign-out, such as `/oauth2/sign_out`; empty: the sign-in page"
    )
    signing_key_file: PathText = Field(
        "", description="file with the private key that signs manifests; empty: `signing.key` in the data folder"
    )
    audit: PathText = Field("", description="file for the audit log as JSON lines, or `stdout`; empty: none")
    cors_origins: str = Field(
        "",
        description="origins allowed to send requests from a browser, comma-separated; `*`: all; empty: none",
    )
    log_level: str = Field("INFO", description="level of the structured logs")

    @cached_property
    def database(self) -> str:
        """The SQLAlchemy URL: `database_url`, or SQLite in the data folder."""
        return self.database_url or sqlite_url(self.data.resolve() / "batchyard.db")

    @cached_property
    def artifacts(self) -> str:
        """The fsspec URL of the artifact store: `artifacts_url`, or a folder in the data folder."""
        return self.artifacts_url or folder_url(self.data.resolve() / "artifacts")

    @property
    def signing_key(self) -> Path:
        """The file of the key that signs manifests, which need not be there."""
        return Path(self.signing_key_file) if self.signing_key_file else self.data.resolve() / "signing.key"

    @cached_property
    def cors_origin_list(self) -> list[str]:
        return [origin.strip().rstrip("/") for origin in self.cors_origins.split(",") if origin.strip()]

    @cached_property
    def input_prefix_list(self) -> list[str]:
        return input_prefixes(self.input_prefixes)

    @cached_property
    def output_prefix_list(self) -> list[str]:
        return input_prefixes(self.output_prefixes)

    @cached_property
    def output_database_urls(self) -> dict[str, str]:
        return output_databases(self.output_databases.get_secret_value())

    @cached_property
    def tier_seconds(self) -> dict[str, int]:
        return tiers(self.tiers)

    @cached_property
    def identity_networks(self) -> list[Network]:
        """The networks of the proxies whose headers name a user."""
        return networks(self.identity_proxies)

    @cached_property
    def group_project_pairs(self) -> list[tuple[str, str]]:
        return group_projects(self.group_projects)

    @cached_property
    def admin_group_names(self) -> frozenset[str]:
        return frozenset(filter(None, map(str.strip, self.admin_groups.split(","))))

    @cached_property
    def oidc_secret(self) -> str:
        """The client's secret, of the setting or of its file. Raises ConfigurationError."""
        if not self.oidc_client_secret_file:
            return self.oidc_client_secret.get_secret_value()
        try:
            return Path(self.oidc_client_secret_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            name = environment_name("oidc_client_secret_file")
            raise ConfigurationError(f"{name}: {self.oidc_client_secret_file} cannot be read: {error}") from error

    @cached_property
    def queue_seconds(self) -> float:
        """Seconds that a message may wait for a worker before it is sent again."""
        return 4.0 * self.lease_seconds

    @cached_property
    def broker_url(self) -> str:
        """`redis_url` for Celery, which writes `redis+socket://` for a Unix socket where redis-py has `unix://`.

        Unlike redis-py, Celery checks a server's certificate only if the URL says so.
        """
        if self.redis_url.startswith("unix://"):
            return "redis+socket://" + self.redis_url.removeprefix("unix://")
        if self.redis_url.startswith("rediss://") and "ssl_cert_reqs=" not in self.redis_url:
            return f"{self.redis_url}{'&' if '?' in self.redis_url else '?'}ssl_cert_reqs=required"
        return self.redis_url


def environment_name(field: str) -> str:
    return Settings.model_fields[field].alias or PREFIX + field.upper()


def load(**overrides: Any) -> Settings:
    """Read settings from the environment, `.env` and `overrides`, in rising order of precedence."""
    names = [environment_name(field) for field in Settings.model_fields] + list(CLIENT_VARIABLES)
    for name in {**dotenv_values(".env"), **os.environ}:
        if name.startswith(PREFIX) and name not in names:
            near = nearest(name.removeprefix(PREFIX), (known.removeprefix(PREFIX) for known in names))
            remedy = f"did you mean {PREFIX}{near}?" if near else "unset it; docs/settings.md lists the settings"
            raise ConfigurationError(f"unknown setting {name}: {remedy}")
    try:
        return Settings(**overrides)
    except ValidationError as error:
        first = invalid_values(error)[0]
        field = str(first.path[0])
        name = environment_name(field) if field in Settings.model_fields else field
        raise ConfigurationError(f"{name}: {first.reason}") from error


CLIENT_VARIABLES = {
    "BATCHYARD_URL": "a running server for the terminal commands, such as `http://127.0.0.1:8000`",
    "BATCHYARD_API_KEY": "the API key the terminal commands send",
}
