"""`batchyard lm-eval`: lm-evaluation-harness with the model `batchyard`."""

import sys
from contextlib import ExitStack

import click

from batchyard.cli import background
from batchyard.cli.options import load_settings
from batchyard.cli.watch import interruptible
from batchyard.client import resume

_NAMES_A_MODEL = ("--model", "-M", "--config", "-C")


@click.command(
    "lm-eval",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []},
)
@click.argument("arguments", metavar="[ARGUMENTS]...", nargs=-1, type=click.UNPROCESSED)
def lm_eval(arguments: tuple[str, ...]) -> None:
    """Run lm-evaluation-harness with its own ARGUMENTS.

    Its model `batchyard`, the default, sends requests as batches:

        batchyard lm-eval --model_args model=mini --tasks my_task --include_path tasks

    If no server is running, the command starts a local stack on ./data and stops it afterwards. To resume after a
    crash, run the same command again: nothing is recomputed.
    """
    from batchyard import plugins

    plugins.require("lm-eval", "`batchyard lm-eval`")
    with ExitStack() as around:
        if (
            arguments
            and (arguments[0] == "run" or arguments[0].startswith("-"))
            and not {"-h", "--help"} & {*arguments}
        ):
            options = arguments[1:] if arguments[0] == "run" else arguments
            named = {argument.partition("=")[0] for argument in options}.intersection(_NAMES_A_MODEL)
            arguments = ("run", *(() if named else ("--model", "batchyard")), *options)
            if any(argument.rpartition("=")[2] == "batchyard" for argument in arguments):
                settings = load_settings()
                around.enter_context(interruptible(resume.remedy(False)))
                around.enter_context(background.server(settings.data, settings.models))
        from lm_eval.__main__ import cli_evaluate

        import batchyard.client.harness  # noqa: F401  registers the model

        sys.argv = ["lm-eval", *arguments]
        cli_evaluate()
