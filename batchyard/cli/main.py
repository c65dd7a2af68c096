"""The command line."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import click
from click.exceptions import NoArgsIsHelpError

from batchyard import __version__
from batchyard.cli import admin, batches, doctor, jobs, models, oneshot, schedules, webhooks
from batchyard.cli.__main__ import INTERRUPTED
from batchyard.cli.console import chat, logs, records, top, verify
from batchyard.cli.output import complain
from batchyard.cli.recipes import commands, evaluate, experiment, lm_eval, tools, tune
from batchyard.cli.recipes.group import BUILT_IN, RecipeCommand, RecipeGroup, add_examples
from batchyard.cli.rows import encoders, map
from batchyard.cli.watch import Unsuccessful
from batchyard.errors import BatchyardError, ConfigurationError, RequestError, UnavailableError

# Exit codes for scripts, beside 0 and Unsuccessful's 1. `batchyard --help` lists them.
USAGE, UNREACHABLE, REFUSED, BROKEN = 2, 3, 4, 5
# The code that shells give to a process that wrote to a pipe which its reader has closed.
CUT_OFF = 128 + signal.SIGPIPE

_EPILOG = """\b
For Tab completion, add to ~/.bashrc:
eval "$(_BATCHYARD_COMPLETE=bash_source batchyard)"

Each recipe in the folder BATCHYARD_RECIPES is a command, too.

\b
Exit codes: 0 success; 1 a batch, job, request or item failed; 2 usage or
configuration; 3 server unreachable; 4 request refused; 5 internal error;
130 Ctrl-C. Cut-off, empty and invalid answers are no failure: the last
line on standard error counts them."""


def _maker(callback: Callable[..., None], *own: RecipeCommand, complete: bool = True) -> Callable[[str], RecipeCommand]:
    """Return what makes the command of a recipe by its name. `own`: commands of recipes that have one of their own."""
    by_name = {command.name: command for command in own}
    return lambda name: by_name.get(name) or RecipeCommand(name, callback, complete=complete)


@click.group(
    cls=RecipeGroup,
    recipe_command=_maker(commands.answer, experiment.run, tune.run),
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="batchyard")
def cli() -> None:
    """Self-hosted batch inference for LLMs behind OpenAI's Batch API."""


config = RecipeGroup(
    "config",
    recipe_command=_maker(commands.show, experiment.config_command, complete=False),
    help="Show the options of a recipe and their origins.",
)
create = _maker(commands.create, experiment.create)
jobs.job.add_command(RecipeGroup("create", recipe_command=create, help="Create a job on a running server."))
for title, members in {
    "Run": [
        *(oneshot.run, batches.submit, batches.plan, map.map_, map.filter_, map.match_, encoders.embed),
        *(encoders.classify, encoders.rerank, encoders.transcribe, chat.chat, oneshot.demo),
    ],
    "Look": [
        *(batches.status, batches.list_, batches.results, top.top, logs.logs, records.open_, records.files),
        *(models.models, records.usage, records.audit, verify.download, verify.verify),
    ],
    "Recipes": [evaluate.run, lm_eval.lm_eval, jobs.job, config, tools.tool],
    "Manage": [
        *(batches.cancel, batches.pause, batches.resume, batches.retry, batches.set_, batches.delete),
        *(schedules.schedule, webhooks.webhook, admin.project, admin.key),
    ],
    "Operate": [admin.up, doctor.doctor, admin.backup, admin.restore, admin.migrate],
}.items():
    for command in members:
        cli.add_command(command)
    cli.sections[title] = [*(BUILT_IN if title == "Recipes" else ()), *(str(command.name) for command in members)]
add_examples(cli, "batchyard")


def main() -> None:
    """Run the command line. Every error is one line that names its remedy."""
    try:
        sys.exit(_run())
    except NoArgsIsHelpError as error:
        error.show()
        sys.exit(USAGE)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "batchyard"
        complain(f"{error.format_message()} (see `{command} --help`)")
        sys.exit(USAGE)
    except click.ClickException as error:
        complain(error.format_message())
        sys.exit(error.exit_code if isinstance(error, Unsuccessful) else USAGE)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except BatchyardError as error:
        lacks_model = error.code == "missing_required_parameter" and error.param == "model"
        complain(error.message + ("; name one with --model" if lacks_model else ""))
        codes = {ConfigurationError: USAGE, UnavailableError: UNREACHABLE, RequestError: REFUSED}
        sys.exit(next((code for kind, code in codes.items() if isinstance(error, kind)), BROKEN))
    except BrokenPipeError:
        # The reader has closed the pipe, as `head` does. Python must not flush the rest into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(CUT_OFF)
    except UnicodeEncodeError:
        complain("an argument has bytes that are no text here: write it as UTF-8, in a locale such as LC_ALL=C.UTF-8")
        sys.exit(USAGE)
    except OSError as error:
        complain(f"{error.filename or 'standard output'}: {error.strerror}")
        sys.exit(BROKEN)


def _run() -> Any:
    """Run the command. What it needs of a server it imports when it runs: that says what is not installed."""
    try:
        return cli(standalone_mode=False)
    except ImportError:
        from batchyard import plugins

        command: click.Command | None = cli
        names = ["batchyard"]
        for word in sys.argv[1:]:
            command = command.commands.get(word) if isinstance(command, click.Group) else None
            if command is None:
                break
            names.append(word)
        plugins.require_server(f"`{' '.join(names)}`")
        raise
