"""Rows to answers: Ray Data over resident engines."""

import functools
import logging
import threading
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from itertools import chain
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import ray
import ray.data
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from batchyard.errors import EngineError, Stopped
from batchyard.models import ModelSpec
from inference.answers import Death
from inference.engine import JobEngine
from inference.engines.registry import capabilities, unfit
from inference.ray.caller import EngineRun, answer, answer_here, nothing
from inference.ray.starts import start_replicas
from inference.ray.tables import unpacked
from inference.ray_data_internals import FIXED_CLUSTER, iter_blocks
from inference.ray_internals import UNPLACED, actor_state
from inference.residents.actor import StartedEngine
from inference.residents.directory import replicas_of
from inference.residents.session import EngineSession, EngineTimeouts

REQUESTS = ["line", "custom_id", "body"]
"""Columns of the rows of a run."""
LOSSES_IN_A_ROW = 3
"""Losses of the caller without an answer in between, after which the run ends."""

RAY_DATA_LOG = logging.getLogger("ray.data")
"""It has progress reports in the process that iterates, and is silenced."""
log = logging.getLogger(__name__)


def run(
    spec: ModelSpec,
    endpoint: str,
    rows: pa.Table,
    timeouts: EngineTimeouts,
    *,
    idempotency_key: str | None = None,
    stopped: Event | None = None,
    paused: Event | None = None,
    on_death: Callable[[Death], None] | None = None,
    by_item: bool = False,
    alone: bool = False,
    replica: int | None = None,
) -> Generator[pa.Table]:
    """Answer every row. Tables come in any order as they are ready; each row is in one.

    Args:
        spec: the model, with its engine and replicas.
        endpoint: such as `/v1/chat/completions`; the same for all rows.
        rows: line (int64), custom_id (string), body (string: the request body as JSON).
        idempotency_key: the name of the work. If a caller is killed, the next run with this key gets the replies to
            the requests that the engine still has. A line is the same request in each of these runs.
        stopped: set by another thread when the work is no longer wanted. The run then ends within a second.
        paused: set by another thread that calls `close`. The run may then end with rows that have no answer.
        on_death: called in this thread with each death of an engine, as it happens: after the answers before it.
        by_item: the rows are turns of items, whose names their custom_ids begin with, before the last slash. Turns of
            an item go to one replica, in this run and others, while that has places.
        alone: each request has an engine to itself.
        replica: the only one of the model's replicas that answers.

    Yields:
        Tables with the schema ANSWERS. Closing the generator stops the run.

    Raises:
        Stopped: `stopped` is set.
        EngineStartError: an engine does not start; with its reason.
        EngineError: engines die without end, Ray fails, or the engine cannot run requests `alone` or in this `replica`.
    """
    if rows.num_rows == 0:
        return
    stopped, on_death = stopped or Event(), on_death or (lambda _: None)
    engine = capabilities(spec.engine)
    if problem := unfit(spec, alone=alone, replica=replica):
        raise EngineError(problem)
    RAY_DATA_LOG.setLevel(logging.CRITICAL)
    if issubclass(engine, JobEngine):
        yield from engine.run(
            spec,
            endpoint,
            rows,
            request_timeout=timeouts.request_timeout,
            start_timeout=timeouts.start_timeout,
            stopped=stopped,
        )
        return
    in_flight = start_replicas(spec, timeouts, stopped, on_death).in_flight
    name = uuid.uuid4().hex
    in_flight = 1 if alone else in_flight  # so that other requests get their turns between them
    session = EngineSession(name, idempotency_key or name, rows.num_rows, in_flight, by_item, alone, replica)
    rows = rows.append_column("position", pa.array(range(rows.num_rows), pa.int64()))
    try:
        run = EngineRun(spec, endpoint, session, timeouts)
        yield from _run_session(run, rows, stopped, paused or Event(), on_death)
    finally:
        for handle in replicas_of(spec, timeouts.request_timeout).values():
            if actor_state(handle) in UNPLACED:
                ray.kill(handle)
            else:
                handle.drop.remote(name)


def close(spec: ModelSpec, idempotency_key: str, request_timeout: float) -> bool:
    """Let a run send no more requests: it ends when those in the engines are answered.

    What the engines do not know of yet is not closed, so call it again until the run has ended.

    False if the model's engine cannot do that; then stop the run.
    """
    if issubclass(capabilities(spec.engine), JobEngine):
        return False
    for handle in replicas_of(spec, request_timeout).values():
        handle.close.remote(idempotency_key)
    return True


def _run_session(
    run: EngineRun, rows: pa.Table, stopped: Event, paused: Event, on_death: Callable[[Death], None]
) -> Generator[pa.Table]:
    """Answer every row with one caller. If it is lost, the next one gets the rest."""
    losses = 0
    while losses < LOSSES_IN_A_ROW:
        answered: list[pa.ChunkedArray] = []
        try:
            with closing(_answered(run, rows, stopped)) as sent:
                for table in sent:
                    if isinstance(table, Death):
                        on_death(table)
                        continue
                    answered.append(table.column("line"))
                    losses = 0
                    yield table
            if sum(map(len, answered)) == rows.num_rows or paused.is_set():
                return
            losses, reason = losses + 1, "it left rows without an answer"
        except RayTaskError as error:
            raise EngineError(f"Ray could not run the rows: {error}") from error
        except RayError as error:
            losses, reason = losses + 1, str(error)
        log.warning("the caller was lost: %s", reason, extra={"model": run.spec.name})
        for lines in answered:
            rows = rows.filter(pc.invert(pc.is_in(rows.column("line"), lines.combine_chunks())))
    raise EngineError(f"Ray could not run the rows: {reason}")


def _answered(run: EngineRun, rows: pa.Table, stopped: Event) -> Generator[pa.Table | Death]:
    """Map the rows to answers and deaths once. Raises RayError if the caller is lost."""
    if rows.num_rows <= run.session.in_flight:
        # They fit into an engine at once, and to run a dataset would take 0.17 s of CPU and half a second.
        yield from answer_here(rows, run, stopped)
        return
    limit = 2 * (run.timeouts.request_timeout + run.timeouts.start_timeout)
    answered = _mapped(rows, answer, (run,), limit)
    with closing(iter_blocks(answered, stopped)) as packed:
        yield from chain.from_iterable(map(unpacked, packed))


def _mapped(
    rows: pa.Table, function: Callable[..., Iterator[pa.Table]], arguments: tuple[Any, ...], limit: float
) -> ray.data.Dataset:
    """Return a dataset of what a caller makes of the rows. Without any for `limit` seconds or a day it is given up."""
    # `from_arrow` would have a task of a whole CPU count the rows, and wait without end for one to be free.
    dataset = ray.data.from_blocks([rows.combine_chunks()])
    dataset.context.execution_no_progress_timeout_s = max(24 * 3600.0, limit)
    dataset.context.target_max_block_size = 1  # byte: a block of answers is complete with its first row
    dataset.context.memory_usage_poll_interval_s = None  # a thread in each caller, for a statistic that nobody reads
    dataset.context.enable_progress_bars = False
    dataset.context.print_on_execution_start = False
    dataset.context.set_config(FIXED_CLUSTER, True)  # callers need no CPU, and Ray adds nodes for engines by itself
    return dataset.map_batches(
        function,
        fn_args=arguments,
        batch_size=None,
        batch_format="pyarrow",
        num_cpus=0,  # it only waits for engines: no other work of the cluster keeps it from its place
        concurrency=1,
        ray_remote_args_fn=_caller_options,
    )


@functools.cache  # once in a process
def _prepare() -> None:
    """Have Ray start what a process's first large run needs, while its first engine starts: 2.3 s later, or never.

    It runs a caller that has nothing to ask: Ray keeps its process, which has imported all, and Ray Data's actors.
    """

    def run() -> None:
        RAY_DATA_LOG.setLevel(logging.CRITICAL)
        try:
            for _ in iter_blocks(_mapped(pa.table({"row": [0]}), nothing, (), 0.0), Event()):
                pass
        except (RayError, Stopped) as error:
            log.warning("the first large run will start slower: %s", error)

    threading.Thread(target=run, name="prepare", daemon=True).start()


def _caller_options() -> dict[str, Any]:
    """Return Ray's options of a caller.

    It runs beside this process, so that the loss of another node loses no caller. Ray must not repeat it: its answers
    would come in another order, and Ray would drop as many of them as it has seen before.
    """
    here = ray.get_runtime_context().get_node_id()
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=True), "max_retries": 0}


def start(
    spec: ModelSpec,
    timeouts: EngineTimeouts,
    *,
    stopped: Event | None = None,
    on_death: Callable[[Death], None] | None = None,
) -> StartedEngine:
    """Start the model's engine unless it runs. Return its limit of requests, and the versions behind its answers.

    The versions are engine, version, torch, model_sha256, … `on_death` is as for `run`.
    """
    stopped = stopped or Event()
    engine = capabilities(spec.engine)
    if issubclass(engine, JobEngine):
        versions = engine.versions(spec, start_timeout=timeouts.start_timeout, stopped=stopped)
        return StartedEngine(versions, spec.in_flight())
    if not engine.simulated:  # which starts at once, and may have little memory: the processes take 300 MiB
        _prepare()
    return start_replicas(spec, timeouts, stopped, on_death or (lambda _: None))
