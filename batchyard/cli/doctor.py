"""`doctor`, which is `up --check`: whether the models of models.toml can run here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from batchyard.cli.options import key_env_option, load_settings, servers_option, stack_options
from batchyard.cli.output import lines_of, painted, say
from batchyard.cli.watch import Unsuccessful
from batchyard.errors import ConfigurationError

if TYPE_CHECKING:
    from batchyard.settings import Settings
    from inference.doctor.folder import Finding

_COLOURS = {"ok": "green", "no": "yellow", "warning": "yellow", "failed": "red"}


@click.command()
@click.argument("names", metavar="[MODEL...]", nargs=-1)
@click.option("--start", is_flag=True, help="Also start each engine and ask it once per endpoint.")
@click.option("--reproducible", is_flag=True, help="Also test whether answers depend on other requests.")
@servers_option
@key_env_option
@stack_options
def doctor(
    names: tuple[str, ...],
    start: bool,
    reproducible: bool,
    servers: tuple[str, ...],
    server_key_env: str | None,
    data: Path | None,
    models: Path | None,
    as_json: bool,
) -> None:
    """Check the models: names, files, memory, first answers.

    --start also starts each engine and asks it once. The exit code is 2 if a check fails. --reproducible sends each
    engine 200 requests four times, in different orders, with 1, 8, 64 and 200 at once. The exit code is 1 if an answer
    or its log-probabilities differ, or if a named model cannot be tested. --server asks that server what its model can
    do, by default its first model. The exit code is then 1 if the server cannot be used.
    """
    if servers:
        if start or reproducible or models is not None:
            raise click.UsageError("--server is asked itself, and goes with none of --start, --reproducible, --models")
        return _ask(servers, server_key_env, names, as_json)
    in_force = load_settings(data=data, models=models)
    run(in_force, names, start=start or reproducible, reproducible=reproducible, as_json=as_json)


def run(
    settings: Settings, names: tuple[str, ...] = (), *, start: bool, reproducible: bool = False, as_json: bool
) -> None:
    """Print what each check says, with its remedy.

    Raises ConfigurationError: a check has failed, or RAY_ADDRESS names a cluster with another Python or Ray;
    Unsuccessful: answers depend on other requests, or a model that is named cannot be tested for that.
    """
    from batchyard.local.services import check_cluster
    from inference.doctor import checks, company

    check_cluster(settings.ray_address)
    findings = list(
        checks.check(
            settings.models,
            allow_simulated=settings.allow_simulated,
            only=names,
            start_seconds=settings.engine_start_timeout if start else None,
            reproducible=reproducible,
        )
    )
    _show(findings, as_json)
    failed = [finding for finding in findings if finding.result == "failed"]
    if failed and all(finding.check == company.CHECK for finding in failed):
        raise Unsuccessful(f"answers of {failed[0].model} depend on the requests that run beside them")
    if failed:
        raise ConfigurationError(f"{settings.models}: {len(failed)} of {len(findings)} checks failed")
    untested = (each for each in findings if each.result == "not checked" and each.check in (company.CHECK, "start"))
    if reproducible and names and (finding := next(untested, None)):
        raise Unsuccessful(f"model {finding.model} was not tested: {finding.detail}")


def _ask(urls: tuple[str, ...], key_env: str | None, names: tuple[str, ...], as_json: bool) -> None:
    """Print what each server can do. Raises Unsuccessful: one cannot be used."""
    from inference.doctor import servers
    from inference.doctor.folder import Finding

    findings, unusable = [], []
    for url in urls:
        try:
            found = list(servers.check(servers.listed(url, key_env), key_env, names))
        except ConfigurationError as error:
            reason, _, remedy = error.message.rpartition("; ")
            found = [Finding(url, "models", "failed", reason, remedy)]
        findings += found
        unusable += [] if servers.is_usable(found) else [url]
    _show(findings, as_json)
    if unusable:
        raise Unsuccessful(f"server {unusable[0]} cannot be used")


def _show(findings: Sequence[Finding], as_json: bool) -> None:
    rows = [
        (finding.model, finding.check, painted(finding.result, _COLOURS.get(finding.result)), finding.detail or None,
         finding.remedy or None)
        for finding in findings
    ]  # fmt: skip
    documents = [asdict(finding) for finding in findings]
    say(documents, lines_of(("model", "check", "result", "detail", "remedy"), rows), as_json)
