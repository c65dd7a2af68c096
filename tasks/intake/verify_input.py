"""Verification: a sample of a batch's answered requests as a new batch, whose step compares the answers."""

import random
from contextlib import ExitStack

from batchyard import json_lines
from batchyard.errors import ConflictError, RequestError
from batchyard.models import served_by_name
from batchyard.statuses import TERMINAL
from inference.engines.registry import unfit
from store import files
from store.formats import results
from store.records import Batch
from tasks.context import AppContext
from tasks.intake import submission
from tasks.intake.submission import Draft, NewInput
from tasks.steps.verify import LOGPROBS, VerifyOptions, sampled


def draft(
    context: AppContext,
    old: Batch,
    options: VerifyOptions,
    *,
    completion_window: str,
    model: str | None,
    logprobs: bool,
) -> Draft:
    """Prepare a batch that asks a sample of the requests with an answer again, in another order.

    `model` is asked in place of those that answered. `logprobs`: chat completions get log-probabilities, too. Raises
    ConflictError: the batch has not ended, has no answers, or a file was deleted; RequestError: a model cannot answer
    requests alone, or has no such replica.
    """
    if old.status not in TERMINAL or old.output_file_id is None:
        message = f"Batch '{old.id}' is {old.status} and has no answers to verify."
        raise ConflictError(message, param="batch_id")
    ids = [old.input_file_id, old.output_file_id, *filter(None, [old.error_file_id])]
    with context.database.read() as session:
        found = [file for one in ids if (file := files.find(session, old.project_id, one)) is not None]
    if len(found) < len(ids):
        message = f"The input, the output or the errors of batch '{old.id}' were deleted or have expired."
        raise ConflictError(message, param="batch_id")
    with ExitStack() as opened, context.artifacts.create() as chosen:
        source, output, *errors = (opened.enter_context(context.artifacts.open(file.sha256)) for file in found)
        rows = results.rows(source, output, errors[0] if errors else None)
        wanted = {row.line for row in sampled(rows, old.completed, options)}
        source.seek(0)
        offset, offsets = 0, list[int]()
        for number, raw in enumerate(source, 1):
            if number in wanted:
                offsets.append(offset)
            offset += len(raw)
        served = served_by_name(context.models)
        for place in random.Random(options.seed).sample(offsets, len(offsets)):
            source.seek(place)
            request = json_lines.read(source.readline())
            request["body"] |= ({} if model is None else {"model": model}) | (LOGPROBS if logprobs else {})
            spec = served.get(request["body"]["model"])
            if spec and (problem := unfit(spec, alone=options.alone, replica=options.replica)):
                param = "alone" if options.replica is None else "replica"
                raise RequestError(f"{problem[0].upper()}{problem[1:]}.", code="invalid_value", param=param)
            chosen.write(json_lines.line(request))
    batch = Batch(
        project_id=old.project_id,
        endpoint=old.endpoint,
        completion_window=completion_window,
        output_expires_after=old.output_expires_after,
        priority=old.priority,
        guard=old.guard,
        request_metadata={"verifies": old.id},
        post_process=[options.model_dump()],
    )
    return submission.draft(context, batch, NewInput(f"verify-{old.id}.jsonl", chosen))
