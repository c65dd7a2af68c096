"""Commands of operators: `up`, `key`, `project`, `migrate`, `backup`, `restore`.

`key` and `project` work on the server that BATCHYARD_URL names, if it names one, and the others on this machine's data.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batchyard import durations, tariffs
from batchyard.cli import doctor
from batchyard.cli.options import (
    add_options,
    connect,
    data_option,
    key_env_option,
    load_settings,
    models_option,
    server_options,
    servers_option,
    stack_options,
)
from batchyard.cli.output import lines_of, say, when
from batchyard.cli.requests import Window
from batchyard.client.address import configured_url
from batchyard.client.api import ApiClient
from batchyard.errors import ConfigurationError, NotFoundError
from batchyard.telemetry import environment

if TYPE_CHECKING:
    from batchyard.settings import Settings
    from store.backup.folder import BackupManifest
    from store.database import Database
    from store.records import Project


_port = click.IntRange(0, 65535)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address that the web app listens on.")
@click.option("--port", type=_port, default=8000, show_default=True, help="Port of the web app; 0 takes a free one.")
@click.option("--flower-port", type=_port, default=5555, show_default=True, help="Port of Flower; 0 takes a free one.")
@click.option("--check", is_flag=True, help="Check the models as `batchyard doctor` does, and start nothing.")
@servers_option
@key_env_option
@data_option
@models_option
def up(
    host: str,
    port: int,
    flower_port: int,
    check: bool,
    servers: tuple[str, ...],
    server_key_env: str | None,
    data: Path | None,
    models: Path | None,
) -> None:
    """Start the whole stack, and stop it with Ctrl-C or SIGTERM.

    With --server, serve the models of servers that are running already, without a models file.
    """
    if servers and models is not None:
        raise click.UsageError("--server takes the place of the models file; leave --models out")
    in_force = load_settings(data=data, models=models)
    if servers:
        in_force = in_force.model_copy(update={"models": _written(in_force.data, servers, server_key_env)})
    if check:
        return doctor.run(in_force, start=False, as_json=False)
    from batchyard.local.stack import Stack
    from inference.doctor import checks

    logging.basicConfig(level="WARNING", format="%(asctime)s %(levelname)s %(message)s", force=True)
    stack = Stack(in_force, host=host, port=port, flower_port=flower_port)
    for finding in checks.of_loaded(stack.models):
        click.echo(f"Model {finding.model}, {finding.check}: {finding.detail}; {finding.remedy}.", err=True)
    for warning in stack.warnings:
        click.echo(f"Budgets: {warning}", err=True)
    if problem := environment.problem(os.environ):
        click.echo(f"Telemetry: {problem}", err=True)

    def ready() -> None:
        click.echo(f"Batchyard is ready: {stack.url}  models: {', '.join(stack.models)}")
        click.echo(f"Flower:    {stack.flower_url}  (user and password: {stack.folder.path / 'flower.auth'})")
        click.echo(f"Data:      {stack.folder.path}  (logs below logs/)")
        click.echo(f"Admin key: {stack.folder.admin_key_file}")
        click.echo("Ctrl-C ends it.")

    stack.run(ready, lambda text: click.echo(text, err=True))


def _written(data: Path, urls: tuple[str, ...], key_env: str | None) -> Path:
    """Ask servers for their models, and write these as a models file into the data folder."""
    from batchyard import models
    from inference.doctor import servers

    entries = servers.entries([servers.listed(url, key_env) for url in urls], key_env)
    file = data / "servers.toml"
    try:
        data.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(models.written(name, entry) for name, entry in entries.items()))
    except OSError as error:
        raise ConfigurationError(f"data folder {data}: {error.strerror}; name another with --data") from error
    return file


@click.group()
def key() -> None:
    """Manage API keys."""


def remote(data: Path | None) -> ApiClient | None:
    """Return a client of the server that BATCHYARD_URL names; None if it names none, or --data a folder."""
    return connect(data) if data is None and configured_url() else None


@contextmanager
def _local(data: Path | None, *, new: bool = False) -> Iterator[tuple[Settings, Database]]:
    """Yield the settings and the database of the deployment on this machine.

    `new`: the database may be a file that is not there yet, where --data or a setting names its place.
    Raises ConfigurationError: BATCHYARD_URL names a server, or there is no database.
    """
    from store.database import Database

    if data is None and (url := configured_url()):
        raise ConfigurationError(
            f"BATCHYARD_URL names the server {url}, and this command works on the data of its own machine: run it "
            "there, name a data folder here with --data, or unset BATCHYARD_URL"
        )
    in_force = load_settings(data=data)
    with closing(Database(in_force.database)) as database:
        if database.is_missing and not (new and {"data", "database_url"} & in_force.model_fields_set):
            raise ConfigurationError(
                f"there is no database {database.url.database}: name the data folder with --data, or the server with "
                "BATCHYARD_URL; `batchyard up` and `batchyard migrate --data DIR` make a new one"
            )
        yield in_force, database


@contextmanager
def local_database(data: Path | None, *, new: bool = False) -> Iterator[Database]:
    """Yield the database of `data`, or of DATABASE_URL, with this version's schema; the rest is as in `_local`."""
    with _local(data, new=new) as (_, database):
        database.upgrade()
        yield database


def _limit(text: str | None, option: str) -> Any:
    """Return a limit of a cap as the API takes it; None for `none`."""
    if text is None or text == "none":
        return None
    try:
        if option != "max_tokens":
            return " ".join(map(str, tariffs.parse_money(text)))
        if (tokens := int(text)) not in range(2**63):
            raise ValueError("write a whole number, at least 0, of less than 64 bits")
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=f"--{option.replace('_', '-')}") from None
    return tokens


def _cap(key_id: str, data: Path | None, limits: dict[str, Any]) -> None:
    """Set a key's cap in this machine's database. Raises NotFoundError."""
    from store import keys
    from store.accounting import budgets

    money = limits.get("max_cost")
    values = limits | ({"max_cost": tariffs.parse_money(money)} if money else {})
    with local_database(data) as database, database.write() as session:
        project = keys.get(session, key_id).project
        budgets.cap(session, keys.terminal(session, project), key_id, values)


_caps = add_options(
    click.option("--max-tokens", metavar="N|none", help="Input and output tokens a month, live and in batches."),
    click.option("--max-cost", metavar="MONEY|none", help="Cost a month, such as '5 EUR'."),
)


@key.command("create")
@click.option("--project", required=True, help="Project of the key; created if it does not exist.")
@click.option("--admin", is_flag=True, help="Let the key manage the deployment, too.")
@click.option("--label", help="Owner or purpose of the key.")
@click.option(
    "--expires-after", metavar="DURATION", type=Window(), help="Lifetime of the key, such as 90d [no expiry]."
)
@_caps
@server_options
def create_key(
    project: str,
    admin: bool,
    label: str | None,
    expires_after: str | None,
    data: Path | None,
    as_json: bool,
    **given: str | None,
) -> None:
    """Create an API key and print it once.

    The key belongs to the server at BATCHYARD_URL, or to the database of --data or DATABASE_URL.
    """
    limits = {name: limit for name, text in given.items() if (limit := _limit(text, name)) is not None}
    if server := remote(data):
        fields = {"project": project, "admin": admin, "label": label, "expires_after": expires_after}
        document = server.call("POST", "/keys", fields | limits)
    else:
        from store import events, keys

        is_folder = data is not None and data.is_dir()
        with local_database(data, new=is_folder) as database, database.write() as session:
            seconds = durations.seconds(expires_after) if expires_after else None
            new_key = keys.create(session, project, admin=admin, label=label, expires_after=seconds)
            shown = {"project": project, "label": label, "admin": admin}
            events.act(session, keys.terminal(session, project), "key.created", new_key.id, **shown)
        if limits:
            _cap(new_key.id, data, limits)
        document = asdict(new_key)
    say(document, document["key"], as_json)


@key.command("set")
@click.argument("key_id", metavar="ID")
@_caps
@server_options
def set_key(key_id: str, data: Path | None, as_json: bool, **given: str | None) -> None:
    """Set or remove what a key may use in a month.

    Once it is used, the key's requests are refused, and its batches and jobs pause.
    """
    limits = {name: _limit(text, name) for name, text in given.items() if text is not None}
    if server := remote(data):
        server.call("POST", f"/keys/{key_id}", limits)
    else:
        _cap(key_id, data, limits)
    say({"id": key_id, **limits}, f"key {key_id}: the cap is set", as_json)


@key.command("list")
@click.option("--project", help="List only the keys of this project.")
@server_options
def list_keys(project: str | None, data: Path | None, as_json: bool) -> None:
    """List the API keys without their secrets, newest first."""
    listed: list[dict[str, Any]] = []
    if server := remote(data):
        listed += server.listed("/keys", project=project)
    else:
        from store import keys

        with local_database(data) as database, database.read() as session:
            more = True
            while more:
                page, more = keys.page(session, project=project, after=listed[-1]["id"] if listed else None)
                listed += map(asdict, page)
    columns = ("id", "project", "label", "admin", "created", "last used", "expires", "revoked")
    rows = [
        (
            *(entry["id"], entry["project"], entry["label"], "yes" if entry["admin"] else None),
            *(when(entry[f"{name}_at"]) for name in ("created", "last_used", "expires", "revoked")),
        )
        for entry in listed
    ]
    say(listed, lines_of(columns, rows), as_json)


@key.command("revoke")
@click.argument("key_id", metavar="ID")
@server_options
def revoke_key(key_id: str, data: Path | None, as_json: bool) -> None:
    """Revoke an API key by its id, for good."""
    if server := remote(data):
        revoked = server.call("DELETE", f"/keys/{key_id}")
    else:
        from store import events, keys

        with local_database(data) as database, database.write() as session:
            revoked = asdict(keys.revoke(session, key_id))
            by = keys.terminal(session, revoked["project"])
            events.act(session, by, "key.revoked", key_id, project=revoked["project"], label=revoked["label"])
    say(revoked, f"key {revoked['id']} of project {revoked['project']} is revoked", as_json)


@key.group()
def signing() -> None:
    """Manage the key that signs the manifests of batches and jobs."""


def _new_signing_key(data: Path | None, *, rotate: bool) -> None:
    from batchyard import signatures
    from batchyard.local.data_folder import write_secret

    with _local(data) as (in_force, _):
        file = in_force.signing_key
    former = signatures.read(file)
    if bool(former) != rotate:
        remedy = "`batchyard key signing rotate` replaces it" if former else "`batchyard key signing create` makes one"
        raise ConfigurationError(f"{file} has {'a' if former else 'no'} signing key: {remedy}")
    write_secret(file, lambda: signatures.new_key_file(former))
    click.echo(f"The signing key is in {file}", err=True)
    click.echo(signatures.pem(signatures.read(file)[0]), nl=False)


@signing.command("create")
@data_option
def create_signing_key(data: Path | None) -> None:
    """Create the signing key and print its public key.

    The private key is signing.key in the data folder, or the file of BATCHYARD_SIGNING_KEY_FILE. Batches and jobs that
    end from now on have a signed manifest. Keep a copy of the file: backups do not include it.
    """
    _new_signing_key(data, rotate=False)


@signing.command("rotate")
@data_option
def rotate_signing_key(data: Path | None) -> None:
    """Replace the signing key and print the new public key.

    The former public keys stay in the file and are shown, since they verify earlier manifests.
    """
    _new_signing_key(data, rotate=True)


@signing.command("show")
@server_options
def show_signing_keys(data: Path | None, as_json: bool) -> None:
    """Show the public keys, the one in use first, in PEM."""
    if server := remote(data):
        document = server.call("GET", f"{server.url}/signing-keys")["data"]
    else:
        from batchyard import signatures

        with _local(data) as (in_force, _):
            document = signatures.shown(in_force.signing_key)
    say(document, "".join(one["public_key"] for one in document).rstrip(), as_json)


@click.group()
def project() -> None:
    """Manage projects, their limits and their budgets."""


@project.command("list")
@server_options
def list_projects(data: Path | None, as_json: bool) -> None:
    """List the projects. A project starts with its first key."""
    if server := remote(data):
        documents = list(server.listed("/projects"))[::-1]
    else:
        from store import projects

        with local_database(data) as database, database.read() as session:
            documents = [_document(record) for record in projects.all_(session)]
    columns = ("id", "name", "tier", "max segments", "cache bytes", "stored", "live tier", "kept", "erasing", "created")
    rows = [
        (
            *(document[name] for name in ("id", "name", *_LIMITS)),
            *(when(document["erasing_at"]), when(document["created_at"])),
        )
        for document in documents
    ]
    say(documents, lines_of(columns, rows), as_json)


_LIMITS = ("tier", "max_segments", "cache_bytes", "max_stored_bytes", "live_tier", "zero_retention_minutes")


def _bytes_or_none(given: str | None) -> int | str | None:
    if given is None or given == "none":
        return given
    if not given.isdecimal():
        raise click.BadParameter(f"'{given}' is not a number of bytes, and not 'none'.")
    return int(given)


def _document(record: Project) -> dict[str, Any]:
    return {name: getattr(record, name) for name in ("id", "name", *_LIMITS, "erasing_at", "created_at")}


@project.command("set")
@click.argument("name")
@click.option("--tier", help="Tier, one of BATCHYARD_TIERS, or none. It sets how soon batches are due.")
@click.option("--max-segments", type=click.IntRange(0), help="Maximum concurrent segments that fill their engine.")
@click.option("--no-max-segments", is_flag=True, help="Remove the project's own limit.")
@click.option("--cache-bytes", type=click.IntRange(1), help="Size of the result cache, in bytes.")
@click.option("--no-cache", "no_cache_bytes", is_flag=True, help="Turn off the result cache and empty it.")
@click.option(
    "--max-stored-bytes",
    metavar="BYTES|none",
    callback=lambda *given: _bytes_or_none(given[-1]),
    help="Maximum bytes of files, outputs included; none: BATCHYARD_MAX_STORED_BYTES.",
)
@click.option(
    "--live-tier",
    type=click.Choice(("all", "default", "flex", "none")),
    help="Service tier of live requests; none: batches only.",
)
@click.option(
    *("--zero-retention", "zero_retention_minutes"),
    type=click.IntRange(1, 525_600),
    metavar="MINUTES",
    help="Delete work this long after its end.",
)
@click.option(
    *("--no-zero-retention", "no_zero_retention_minutes"),
    is_flag=True,
    help="Keep work as long as BATCHYARD_RETENTION.",
)
@server_options
def set_project(name: str, data: Path | None, as_json: bool, **limits: Any) -> None:
    """Change the limits and the retention of the project NAME."""
    changes: dict[str, Any] = {}
    for limit in ("max_segments", "cache_bytes", "zero_retention_minutes"):
        if limits[limit] is not None or limits[f"no_{limit}"]:
            changes[limit] = limits[limit]
    for limit, removed in (("tier", "none"), ("max_stored_bytes", "none"), ("live_tier", "all")):
        if limits[limit] is not None:
            changes[limit] = None if limits[limit] == removed else limits[limit]
    if server := remote(data):
        document = server.call("POST", f"/projects/{server.project_id(name)}", changes)
    else:
        from store import projects

        with _local(data) as (in_force, database):
            projects.check_tier(changes.get("tier"), in_force.tier_seconds)
            database.upgrade()
            with database.write() as session:
                document = _document(projects.update(session, projects.named(session, name), **changes))
    segments, size, stored, live_tier, minutes = (document[limit] for limit in _LIMITS[1:])
    limit = "no limit" if segments is None else segments
    cache = "no cache" if size is None else f"cache of {size} bytes"
    live = f"live requests of tier {live_tier}" if live_tier else "live requests of every tier"
    live = "no live requests" if live_tier == "none" else live
    kept = "" if minutes is None else f", all deleted {minutes} minutes after its end"
    kept += "" if stored is None else f", files of at most {stored} bytes"
    say(document, f"{name}: tier {document['tier'] or 'none'}, max segments {limit}, {cache}, {live}{kept}", as_json)


@project.command("erase")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@server_options
def erase_project(name: str, yes: bool, data: Path | None, as_json: bool) -> None:
    """Erase the project NAME with everything in it, for good.

    This covers keys, files, batches, jobs, schedules and usage. Its keys stop working at once, and running work is
    cancelled. The running deployment does the rest; `project list` shows the project until then. To erase another
    project, use an admin key.
    """
    if not yes:
        click.confirm(f"Erase project {name} and all that it has?", abort=True, err=True)
    if server := remote(data):
        document = server.call("DELETE", f"/projects/{server.project_id(name)}")
    else:
        from store import keys, projects
        from store.deletion import erasure

        with local_database(data) as database, database.write() as session:
            project_id = projects.named(session, name)
            by = keys.terminal_beside(session, project_id)
            document = _document(erasure.begin(session, by, project_id))
    say(document, f"{name} is being erased", as_json)


@project.command("budget")
@click.argument("name")
@click.argument("amount", required=False)
@click.option("--warn-at", type=click.IntRange(1, 100), default=80, show_default=True, help="Percentage to warn at.")
@click.option(
    "--when-exceeded",
    type=click.Choice(["finish", "pause"]),
    default="finish",
    show_default=True,
    help="Finish or pause running work once the budget is spent.",
)
@stack_options
def set_budget(
    name: str, amount: str | None, data: Path | None, models: Path | None, as_json: bool, **options: Any
) -> None:
    """Show or set the monthly budget of the project NAME.

    AMOUNT is such as "100 EUR", or `none`. Without AMOUNT, the budget is shown. Once it is spent, by the tariffs of
    models.toml, the project's new batches and jobs are refused until the next month.
    """
    try:
        money = None if amount in (None, "none") else tariffs.parse_money(amount)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="AMOUNT") from None
    terms = None if money is None else {"amount": money[0], "currency": money[1], **options}
    document: dict[str, Any] | None = None
    if server := remote(data):
        path = f"/projects/{server.project_id(name)}/budget"
        if terms is not None:
            document = server.call("POST", path, {**terms, "amount": str(terms["amount"])})
        elif amount == "none":
            server.call("DELETE", path)
        else:
            with suppress(NotFoundError):
                document = server.call("GET", path)
    else:
        from inference import catalog
        from store import keys, projects
        from store.accounting import budgets

        with local_database(data) as database:
            if terms is not None:
                served = catalog.load(load_settings(models=models).models, allow_simulated=True)
                budgets.check_currency(terms["currency"], served)
            with database.write() as session:
                project_id = projects.named(session, name)
                by = keys.terminal(session, name)
                if amount == "none":
                    budgets.remove(session, by, project_id)
                if terms is not None:
                    budgets.change(session, by, project_id, **terms)
                standing = budgets.standing(session, project_id)
        document = None if standing is None else standing.document
    if document is None:
        return say({}, f"{name}: no budget", as_json)
    spent, limit = (tariffs.text(Fraction(document[each]), document["currency"]) for each in ("spent", "amount"))
    then = {"finish": "runs to its end", "pause": "is paused"}[document["when_exceeded"]]
    text = f"{name}: {limit} a month, warning at {document['warn_at']} %, then what runs {then}; {spent} spent"
    say(document, f"{text} in {document['month']}", as_json)


@click.command()
@click.option("--admin-key", is_flag=True, help="Create an admin key in the data folder (admin.key) if none is in use.")
@data_option
def migrate(admin_key: bool, data: Path | None) -> None:
    """Upgrade the database schema. `up` does this by itself."""
    from batchyard.local.data_folder import write_secret
    from store import keys

    with _local(data, new=True) as (in_force, database):
        database.upgrade()
        with database.write(serial=True) as session:
            if admin_key and not keys.has_admin(session):
                file = in_force.data.resolve() / "admin.key"
                file.parent.mkdir(parents=True, exist_ok=True)
                write_secret(file, lambda: keys.create_admin(session).key)
                click.echo(f"The first admin key is in {file}")


@contextmanager
def _private() -> Iterator[None]:
    """Let files and folders made meanwhile be this user's alone: they hold prompts and answers."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


_folder = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))


@click.command()
@_folder
@server_options
def backup(folder: Path, data: Path | None, as_json: bool) -> None:
    """Copy all records and files to DIR while the stack runs."""
    from store.artifacts import Artifacts
    from store.backup import creation

    with _local(data) as (in_force, database), _private():
        manifest = creation.create(
            folder,
            database,
            Artifacts(in_force.artifacts),
            garbage_grace_seconds=in_force.garbage_grace_seconds,
            results_seconds=in_force.results_seconds,
        )
    for sha256 in manifest.missing:
        click.echo(f"Missing in the artifact store, and so in the backup: {sha256}", err=True)
    _report(manifest, f"Backup in {folder}", as_json)


@click.command()
@_folder
@server_options
def restore(folder: Path, data: Path | None, as_json: bool) -> None:
    """Load the backup in DIR into a new data folder.

    The target is --data, or an empty database and artifact store. It may be of another kind than the source, such as
    PostgreSQL in place of SQLite. Start it with `batchyard up`.
    """
    from store.artifacts import Artifacts
    from store.backup import restoring

    with _local(data, new=True) as (in_force, database), _private():
        manifest = restoring.restore(folder, database, Artifacts(in_force.artifacts))
    _report(manifest, f"Restored {folder}", as_json)


def _report(manifest: BackupManifest, done: str, as_json: bool) -> None:
    rows, size = sum(manifest.rows.values()), manifest.bytes / 1e6
    text = f"{done}: {rows} rows, {manifest.artifacts} artifacts, {size:.1f} MB, of version {manifest.version}"
    say(asdict(manifest), text, as_json)
