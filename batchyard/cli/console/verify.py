"""`download` brings all files of a batch or job; `verify` checks them, or asks requests of a batch again."""

import json
from pathlib import Path
from typing import Any

import click

from batchyard.cli import completion
from batchyard.cli.options import connect, data_option, json_option, server_options
from batchyard.cli.output import say
from batchyard.cli.requests import window_option
from batchyard.cli.watch import Unsuccessful, interruptible, watch
from batchyard.errors import ConfigurationError
from batchyard.wording import count

REPORT = "verify-summary.json"
"""What the step `verify` has written."""
MAX_SHOWN = 20
"""Lines that a report lists; `--json` has all."""


@click.command()
@click.argument("name", metavar="BATCH|JOB", shell_complete=completion.batches)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@server_options
def download(name: str, folder: Path, data: Path | None, as_json: bool) -> None:
    """Download all files of a batch or job to a folder.

    The new folder DIR gets the input, the outputs, the errors, the files of steps, and the manifest. `batchyard verify
    DIR` checks them on any machine, without a server.
    """
    from batchyard.client import verification

    record = verification.download(connect(data), name, folder)
    say(record, f"{folder} has all files of {name}; `batchyard verify {folder}` checks them", as_json)


@click.command()
@click.argument("target", metavar="BATCH|DIR", shell_complete=completion.batches)
@click.option("--sample", default=200, show_default=True, type=click.IntRange(1), help="Ask at most this many again.")
@click.option("--seed", default=0, show_default=True, type=int, help="Decides which requests, and in which order.")
@click.option("-m", "--model", shell_complete=completion.models, help="Ask this model [those that answered].")
@click.option("--alone", is_flag=True, help="Ask each request while its engine has no other.")
@click.option("--replica", metavar="N", type=click.IntRange(0), help="Ask only this replica, counted from 0 [all].")
@click.option("--logprobs", is_flag=True, help="Ask for log-probabilities, and show how close different tokens were.")
@click.option("--tolerance", default=0.0, show_default=True, type=click.FloatRange(0), help="For vectors and scores.")
@click.option("--with", "again_id", metavar="BATCH", help="Compare with this batch of an earlier `verify`.")
@click.option("--public-key", metavar="FILE|PEM", help="Check that one of these keys has signed the manifest of DIR.")
@window_option
@data_option
@json_option
def verify(
    target: str,
    data: Path | None,
    as_json: bool,
    window: str,
    again_id: str | None,
    public_key: str | None,
    **options: Any,
) -> None:
    """Check downloaded files, or ask a batch's requests again.

    DIR is a folder of `batchyard download`: every file is compared with the manifest, without a server. For a batch, a
    random sample of its requests runs again in another order, and the answers are compared. The report has a 95 %
    confidence interval for the share of all answers that would differ. The exit code is 1 if something differs.
    """
    if Path(target).is_dir():
        return _verify_folder(Path(target), public_key, as_json)
    if public_key is not None:
        raise click.UsageError("--public-key is for a folder: download the batch first")
    server = connect(data)
    if again_id is None:
        again = server.call("POST", f"/batches/{target}/verify", {"completion_window": window, **options})
    else:
        again = server.batch(again_id)
    with interruptible(f"`batchyard verify {target} --with {again['id']}` goes on"):
        again = watch(server, again)
    files = {one["name"]: one["file_id"] for one in again["batchyard"]["artifacts"]}
    if REPORT not in files:
        reasons = [*((again["errors"] or {}).get("data") or []), *again["batchyard"]["post_process"]]
        said = "; ".join(filter(None, (one.get("message") or one.get("error") for one in reasons)))
        raise ConfigurationError(
            f"{again['id']} is {again['status']} and compared nothing: {said or 'nothing of it ran'}"
        )
    report = {"again_id": again["id"], **json.loads(server.content(files[REPORT]))}
    if report["batch_id"] != target:
        raise ConfigurationError(f"{again['id']} verifies {report['batch_id']}, and not {target}")
    shares = f"{100 * report['low']:.1f} to {100 * report['high']:.1f} %"
    how = ", each alone" if report["alone"] else ""
    how += "" if report["replica"] is None else f", in replica {report['replica']}"
    lines = [
        f"{target}: {report['asked']} of {count(report['requests'], 'answer')} asked again by {again['id']}{how}",
        f"{report['equal']} equal, {report['different']} different, {report['failed']} without an answer",
        f"{shares} of all answers would differ (95 % confidence)",
        *(f"changed since then: {change}" for change in report["changes"]),
    ]
    for one in report["differences"][:MAX_SHOWN]:
        texts = f": {one['after']!r}, and was {one['before']!r}" if one["before"] or one["after"] else ""
        gap = "" if one["gap"] is None else f" (log-probabilities {one['gap']:.3f} apart)"
        lines.append(f"{one['custom_id']}: {one['what']}{texts}{gap}")
    say(report, "\n".join([*lines, *_more(report["differences"])]), as_json)
    if report["different"] or report["failed"]:
        raise Unsuccessful(f"{target} was not reproduced")


def _verify_folder(folder: Path, public_key: str | None, as_json: bool) -> None:
    from batchyard import signatures
    from batchyard.client import verification

    try:
        text = public_key if public_key is None or "-----BEGIN" in public_key else Path(public_key).read_text()
        keys = [] if text is None else signatures.public_keys(text)
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{public_key} is no public key: {error}", param_hint="--public-key") from None
    manifest, mismatches, absent = verification.check(folder, keys)
    name = manifest.get("batch_id", manifest.get("job"))
    document = {"id": name, "mismatches": [one._asdict() for one in mismatches], "absent": absent}
    if not mismatches:
        signed = ", which the key has signed" if keys else ""
        lines = [f"{folder}: all files of {name} are as its manifest says{signed}"]
        lines += [f"{file} was deleted from the server before the download" for file in absent]
        return say(document, "\n".join(lines), as_json)
    say(document, "\n".join([*map(str, mismatches[:MAX_SHOWN]), *_more(mismatches)]), as_json)
    raise Unsuccessful(f"{folder} does not fit its manifest")


def _more(entries: list[Any]) -> list[str]:
    rest = len(entries) - MAX_SHOWN
    return [f"and {rest} more; --json has all"] if rest > 0 else []
