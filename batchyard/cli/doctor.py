"""`doctor`, which is `up --check`: whether the models of models.toml can run here."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from batchyard.cli.options import load_settings, stack_options
from batchyard.cli.output import painted, say_table
from batchyard.errors import ConfigurationError

if TYPE_CHECKING:
    from batchyard.settings import Settings

_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red"}


@click.command()
@click.argument("names", metavar="[MODEL...]", nargs=-1)
@click.option("--start", is_flag=True, help="Also start each engine and ask it once per endpoint.")
@stack_options
def doctor(names: tuple[str, ...], start: bool, data: Path | None, models: Path | None, as_json: bool) -> None:
    """Check the models: names, files, memory, first answers.

    --start also starts each engine and asks it once. The exit code is 2 if a check fails.
    """
    run(load_settings(data=data, models=models), names, start=start, as_json=as_json)


def run(settings: Settings, names: tuple[str, ...] = (), *, start: bool, as_json: bool) -> None:
    """Print what each check says, with its remedy.

    Raises ConfigurationError: a check has failed, or RAY_ADDRESS names a cluster with another Python or Ray.
    """
    from batchyard.local.services import check_cluster
    from inference.doctor import checks

    check_cluster(settings.ray_address)
    findings = list(
        checks.check(
            settings.models,
            allow_simulated=settings.allow_simulated,
            only=names,
            start_seconds=settings.engine_start_timeout if start else None,
        )
    )
    rows = [
        (finding.model, finding.check, painted(finding.result, _COLOURS.get(finding.result)), finding.detail or None,
         finding.remedy or None)
        for finding in findings
    ]  # fmt: skip
    documents = [asdict(finding) for finding in findings]
    say_table(documents, ("model", "check", "result", "detail", "remedy"), rows, as_json)
    failed = sum(finding.result == "failed" for finding in findings)
    if failed:
        raise ConfigurationError(f"{settings.models}: {failed} of {len(findings)} checks failed")
