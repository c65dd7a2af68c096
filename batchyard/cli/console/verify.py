"""`download` brings all files of a batch or job; `verify` checks them, or asks requests of a batch again."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batchyard.cli import completion
from batchyard.cli.options import connect, data_option, json_option, server_options
from batchyard.cli.output import say
from batchyard.cli.requests import window_option
from batchyard.cli.watch import Unsuccessful, interruptible, watch
from batchyard.wording import count

if TYPE_CHECKING:
    from batchyard.client.verification.again import Comparison

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
    from batchyard.client.verification import folder as folders

    record = folders.download(connect(data), name, folder)
    say(record, f"{folder} has all files of {name}; `batchyard verify {folder}` checks them", as_json)


@click.command()
@click.argument("target", metavar="BATCH|DIR", shell_complete=completion.batches)
@click.option("--sample", default=200, show_default=True, type=click.IntRange(1), help="Ask at most this many again.")
@click.option("--seed", default=0, show_default=True, type=int, help="Decides which requests, and in which order.")
@click.option("-m", "--model", shell_complete=completion.models, help="Ask this model [those that answered].")
@click.option("--logprobs", is_flag=True, help="Ask for log-probabilities, and show how close different tokens were.")
@click.option("--tolerance", default=0.0, show_default=True, type=click.FloatRange(0), help="For vectors and scores.")
@click.option("--with", "again_id", metavar="BATCH", help="Compare with this batch of an earlier `verify`.")
@window_option
@data_option
@json_option
def verify(target: str, data: Path | None, as_json: bool, window: str, again_id: str | None, **options: Any) -> None:
    """Check downloaded files, or ask a batch's requests again.

    DIR is a folder of `batchyard download`: every file is compared with the manifest, without a server. For a batch, a
    random sample of its requests runs again in another order, and the answers are compared. The report has a 95 %
    confidence interval for the share of all answers that would differ. The exit code is 1 if something differs.
    """
    if Path(target).is_dir():
        return _verify_folder(Path(target), as_json)
    from batchyard.client.verification import again

    server = connect(data)
    batch = server.batch(target)
    tolerance = options.pop("tolerance")
    if again_id is None:
        started = again.begin(server, batch, completion_window=window, **options)
        again_id = started["id"]
    else:
        started = server.batch(again_id)
    with interruptible(f"`batchyard verify {target} --with {again_id}` goes on"):
        ended = watch(server, started)
    result = again.compare(server, batch, ended, tolerance=tolerance)
    say(asdict(result), _report(result), as_json)
    if result.differences or result.failed:
        raise Unsuccessful(f"{target} was not reproduced")


def _verify_folder(folder: Path, as_json: bool) -> None:
    from batchyard.client.verification import folder as folders

    manifest, mismatches = folders.check(folder)
    name = manifest.get("batch_id", manifest.get("job"))
    document = {"id": name, "mismatches": [one._asdict() for one in mismatches]}
    if not mismatches:
        return say(document, f"{folder}: all files of {name} are as its manifest says", as_json)
    say(document, "\n".join([*map(str, mismatches[:MAX_SHOWN]), *_more(mismatches)]), as_json)
    raise Unsuccessful(f"{folder} does not fit its manifest")


def _report(result: Comparison) -> str:
    """Return what became of the requests that were asked again, for people."""
    shares = f"{100 * result.low:.1f} to {100 * result.high:.1f} %"
    lines = [
        f"{result.batch_id}: {result.asked} of {count(result.requests, 'answer')} asked again by {result.again_id}",
        f"{result.equal} equal, {len(result.differences)} different, {len(result.failed)} without an answer",
        f"{shares} of all answers would differ (95 % confidence)",
        *(f"changed since then: {change}" for change in result.changes),
    ]
    for one in result.differences[:MAX_SHOWN]:
        texts = f": {one.after!r}, and was {one.before!r}" if one.before or one.after else ""
        gap = "" if one.gap is None else f" (log-probabilities {one.gap:.3f} apart)"
        lines.append(f"{one.custom_id}: {one.what}{texts}{gap}")
    return "\n".join([*lines, *_more(result.differences)])


def _more(entries: list[Any]) -> list[str]:
    rest = len(entries) - MAX_SHOWN
    return [f"and {rest} more; --json has all"] if rest > 0 else []
