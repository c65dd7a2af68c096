"""What the commands that ask about each row of a file share: options, the server, new columns, the report."""

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from batchyard import wording
from batchyard.cli import background, completion, requests
from batchyard.cli.options import add_options, load_settings, stack_options
from batchyard.cli.output import plain
from batchyard.cli.watch import conclude, interruptible
from batchyard.client import output_files, resume
from batchyard.client.api import ApiClient
from batchyard.errors import ConfigurationError
from batchyard.wording import cut

REASONS = 3


@dataclass(frozen=True)
class RowsCommand:
    """The options that these commands share."""

    source: Path
    model: str
    output: Path
    window: str
    again: bool
    data: Path | None
    models: Path | None
    as_json: bool
    prefix: str = ""
    null_values: tuple[str, ...] = ()

    def add_columns(
        self,
        names: Sequence[str],
        ask: Callable[..., Any],
        rows: Any = None,
        keep: tuple[str, Any] | None = None,
    ) -> None:
        """Write the rows with new columns beside theirs, and report.

        Args:
            names: of the columns that `ask` returns, without the details.
            ask: returns what became of a table's rows, as a table with these columns and the details. Gets the table,
                and as keywords the options that all calls of `batchyard.client` have.
            rows: the table; by default that of the source.
            keep: a new column, and the value that it has in the rows that are written; by default all are.
        """
        from batchyard.client import frames, tables
        from batchyard.client.asking import DETAILS, AnswerWarning

        tables.check_output(self.output)
        if self.output.exists() and self.output.samefile(self.source):
            raise ConfigurationError(f"{self.output} is the file that the rows come from; name another output")
        requests.check_writable(self.output)
        table = tables.read(self.source) if rows is None else rows
        cells = tables.cells(self.source, table, self.null_values) if rows is None else rows
        self.check_new([*names, *DETAILS], frames.of(table).columns)
        with self.server() as server, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", AnswerWarning)
            answers = ask(cells, **self.options(server))
            simulated = self.simulated(server)
        made, kept = frames.of(answers), None
        output = tables.beside(table, answers, self.prefix)
        if keep is not None:
            places = [row for row, value in enumerate(made.cells(keep[0])) if value == keep[1]]
            output, kept = tables.taken(output, places), len(places)
        tables.write(self.output, output)
        flaws = next((one.message.counted for one in caught if isinstance(one.message, AnswerWarning)), None)
        self.report(made.cells("error"), simulated, flaws, kept)

    def check_new(self, names: Sequence[str], columns: Sequence[str]) -> None:
        """Raise ConfigurationError if the file has a column of a new one's name."""
        if clash := [name for name in names if self.prefix + name in columns]:
            name = self.prefix + clash[0]
            raise ConfigurationError(
                f"{self.source} has a column {name} already; --prefix gives the new columns other names"
            )

    @contextmanager
    def server(self) -> Iterator[ApiClient]:
        """Yield a running server, that of the settings or one of the command's."""
        settings = load_settings(data=self.data, models=self.models)
        with interruptible(resume.remedy(self.again)), background.server(settings.data, settings.models) as server:
            yield server

    def options(self, server: ApiClient) -> dict[str, Any]:
        return {"model": self.model, "window": self.window, "again": self.again, "server": server}

    def simulated(self, server: ApiClient) -> bool:
        return any(entry["batchyard"]["simulated"] for entry in server.models() if entry["id"] == self.model)

    @property
    def name(self) -> str:
        return self.source.name.partition(".")[0] or "rows"

    def report(
        self,
        errors: Sequence[str | None],
        simulated: bool,
        flaws: Mapping[str, int] | None = None,
        kept: int | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Say how many rows have an answer, and why others have none. Raises Unsuccessful.

        `kept`: how many rows are in the output, if not all. `facts`: more for scripts.
        """
        from batchyard.client.asking import is_unsent

        reasons = Counter(error for error in errors if error is not None)
        rows, answered = len(errors), len(errors) - reasons.total()
        if self.as_json:
            report: dict[str, Any] = {"rows": rows, "answered": answered} | ({} if kept is None else {"kept": kept})
            report |= {**(facts or {}), **(flaws or {}), "errors": reasons}
            click.echo(json.dumps({**report, "simulated": simulated, "output": str(self.output)}))
        else:
            said = f"{answered} of {rows} rows answered{wording.flaws(flaws or {}, ', ')}"
            said += f"{'' if kept is None else f', {kept} kept'}{' (simulated)' if simulated else ''}: {self.output}"
            click.echo(said, err=output_files.is_stdout(self.output))
            for reason, count in reasons.most_common(REASONS):
                click.echo(plain(f"{count} without an answer: {cut(reason, 150)}"), err=True)
        failed = sum(count for reason, count in reasons.items() if not is_unsent(reason))
        where = f"the column error of {self.output} tells why" if kept is None else "the output lacks them"
        failure = f"{failed} of {rows} rows failed; {where}" if failed else None
        conclude(failure, flaws or {})


def source_and_output(what: str, *, folder: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds FILE, --model and --output."""
    source = requests.LocalPath(path_type=Path, exists=True, dir_okay=folder)
    return add_options(
        click.argument("source", metavar="SOURCE" if folder else "FILE", type=source), output_options(what)
    )


def output_options(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds --model and --output."""
    return add_options(
        click.option("-m", "--model", required=True, shell_complete=completion.models, help="Model that answers."),
        click.option(
            *("-o", "--output"),
            required=True,
            type=requests.OUTPUT_FILE,
            help=f"Output file: {what}.",
        ),
    )


shared_options = add_options(
    requests.null_values_option,
    requests.window_option,
    click.option("--again", is_flag=True, help="Ignore earlier answers and recompute."),
    stack_options,
)
"""The other options of RowsCommand but `prefix`, which is for commands that add columns to FILE's."""
common_options = add_options(
    click.option("--prefix", default="", help="Prefix for new columns whose names FILE already has."), shared_options
)
