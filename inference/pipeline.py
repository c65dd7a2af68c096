"""Rows to answers: Ray Data over resident engines."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import closing
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import ray
import ray.data
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from batchyard.errors import EngineError, EngineStartError, UnavailableError
from batchyard.models import ModelSpec
from inference.deaths import EngineDeath
from inference.engine import JobEngine
from inference.engines.registry import capabilities
from inference.engines.start_errors import fits_no_node, no_place, start_error, start_timed_out
from inference.ray.caller import _why, answer, answer_here, was_stopped
from inference.ray.tables import death, raise_failure, unpacked
from inference.ray_internals import UNPLACED, actor_id, actor_state, iter_blocks
from inference.residents import gpu_eviction
from inference.residents.actor import StartedEngine, gpus
from inference.residents.directory import (
    UNPLACED_SECONDS,
    actor_name,
    are_unplaced,
    engine_actors,
    get_or_create_engine,
)
from inference.residents.session import EngineSession, EngineTimeouts
from inference.waits import wait

REQUESTS = ["line", "custom_id", "body"]
"""Columns of the rows of a run."""
PLACE_LOOK_SECONDS = 1.0
HANG_MARGIN = 30.0
"""Seconds beyond the request timeout after which a silent engine is killed."""
START_ATTEMPTS = 5
LOSSES_IN_A_ROW = 3
"""Losses of the caller without an answer in between, after which the run ends."""

log = logging.getLogger(__name__)


def run(
    spec: ModelSpec,
    endpoint: str,
    rows: pa.Table,
    *,
    idempotency_key: str | None = None,
    request_timeout: float,
    start_timeout: float,
    idle_seconds: float,
    stopped: threading.Event | None = None,
    paused: threading.Event | None = None,
    on_death: Callable[[EngineDeath], None] | None = None,
) -> Generator[pa.Table]:
    """Answer every row. Tables of answers come as they are ready, in any order; each row is in exactly one.

    Args:
        spec: the model, with its engine and replicas.
        endpoint: such as `/v1/chat/completions`; the same for all rows.
        rows: line (int64), custom_id (string), body (string: the request body as JSON).
        idempotency_key: the name of the work. If a caller is killed, the next run with this key gets the replies to
            the requests that the engine still has. A line is the same request in each of these runs.
        request_timeout: the longest that one request may run, in seconds.
        start_timeout: the longest that an engine may take to start, in seconds.
        idle_seconds: engines stop after this many seconds without work.
        stopped: set by another thread when the work is no longer wanted. The run then ends within a second.
        paused: set by another thread that calls `close`. The run may then end with rows that have no answer.
        on_death: called in this thread with each death of an engine, as it happens: after the answers before it.

    Yields:
        line (int64), ok (bool: status 200), answer (string: the output line as JSON), input_tokens, cached_tokens,
        output_tokens (int64: from the engine's usage), seconds (float64: time in the engine). Closing the
        generator stops the run.

    Raises:
        Stopped: `stopped` is set.
        EngineStartError: an engine does not start; with its own reason.
        EngineError: engines die without end, or Ray fails.
    """
    if rows.num_rows == 0:
        return
    stopped = stopped or threading.Event()
    engine = capabilities(spec.engine)
    if issubclass(engine, JobEngine):
        _quieten()
        yield from engine.run(
            spec, endpoint, rows, request_timeout=request_timeout, start_timeout=start_timeout, stopped=stopped
        )
        return
    timeouts = EngineTimeouts(request_timeout, start_timeout, idle_seconds, HANG_MARGIN)
    on_death = on_death or _ignore
    in_flight = _start(spec, timeouts, stopped, on_death).in_flight
    name = uuid.uuid4().hex
    session = EngineSession(name, idempotency_key or name, rows.num_rows, in_flight)
    _quieten()
    rows = rows.append_column("position", pa.array(range(rows.num_rows), pa.int64()))
    losses = 0
    try:
        while losses < LOSSES_IN_A_ROW:
            answered: list[pa.ChunkedArray] = []
            try:
                with closing(_answered(spec, endpoint, rows, session, timeouts, stopped)) as answers:
                    for table in answers:
                        raise_failure(table)
                        if (engine_death := death(table)) is not None:
                            on_death(engine_death)
                            continue
                        answered.append(table.column("line"))
                        losses = 0
                        yield table
                if sum(map(len, answered)) == rows.num_rows or (paused is not None and paused.is_set()):
                    return
                losses, reason = losses + 1, "it left rows without an answer"
            except RayTaskError as error:
                raise EngineError(f"Ray could not run the rows: {error}") from error
            except RayError as error:
                losses, reason = losses + 1, str(error)
            log.warning("the caller was lost: %s", reason, extra={"model": spec.name})
            for lines in answered:
                rows = rows.filter(pc.invert(pc.is_in(rows.column("line"), lines.combine_chunks())))
        raise EngineError(f"Ray could not run the rows: {reason}")
    finally:
        _drop(spec, timeouts, name)


def close(spec: ModelSpec, idempotency_key: str, request_timeout: float) -> bool:
    """Let a run send no more requests: it ends when those in the engines are answered.

    What the engines do not know of yet is not closed, so call it again until the run has ended.

    Returns:
        False if the model's engine cannot do that; then stop the run.
    """
    if issubclass(capabilities(spec.engine), JobEngine):
        return False
    alive = engine_actors()
    for replica in range(spec.replicas):
        handle = alive.get(actor_name(spec, request_timeout, replica))
        if handle is not None:
            handle.close.remote(idempotency_key)
    return True


def _answered(
    spec: ModelSpec,
    endpoint: str,
    rows: pa.Table,
    session: EngineSession,
    timeouts: EngineTimeouts,
    stopped: threading.Event,
) -> Generator[pa.Table]:
    """Map the rows to answers once. Raises RayError if the caller is lost; then some rows have no answer."""
    if rows.num_rows <= session.in_flight:
        # They fit into an engine at once, and to run a dataset would take 0.17 s of CPU and half a second.
        yield from answer_here(rows, spec, endpoint, session, timeouts, stopped)
        return
    # `from_arrow` would have a task of a whole CPU count the rows, and wait without end for one to be free.
    dataset = ray.data.from_blocks([rows.combine_chunks()])
    limit = 2 * (timeouts.request_timeout + timeouts.start_timeout)
    dataset.context.execution_no_progress_timeout_s = max(24 * 3600.0, limit)
    dataset.context.target_max_block_size = 1  # byte: a block of answers is complete with its first row
    dataset.context.enable_progress_bars = False
    dataset.context.print_on_execution_start = False
    answered = dataset.map_batches(
        answer,
        fn_args=(spec, endpoint, session, timeouts),
        batch_size=None,
        batch_format="pyarrow",
        num_cpus=0,  # it only waits for engines: no other work of the cluster keeps it from its place
        concurrency=1,
        ray_remote_args_fn=_caller_options,
    )
    with closing(iter_blocks(answered, stopped)) as packed:
        yield from chain.from_iterable(map(unpacked, packed))


def _caller_options() -> dict[str, Any]:
    """Return Ray's options of a caller.

    It runs beside this process, so that the loss of another node loses no caller. Ray must not repeat it: its answers
    would come in another order, and Ray would drop as many of them as it has seen before.
    """
    here = ray.get_runtime_context().get_node_id()
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=True), "max_retries": 0}


def start(
    spec: ModelSpec,
    *,
    request_timeout: float,
    start_timeout: float,
    idle_seconds: float,
    stopped: threading.Event | None = None,
    on_death: Callable[[EngineDeath], None] | None = None,
) -> StartedEngine:
    """Start the model's engine unless it runs. Return its limit of requests, and the versions behind its answers.

    The versions are engine, version, torch, model_sha256, … `on_death` is as for `run`.

    Raises:
        Stopped: `stopped` is set.
        EngineStartError: the engine is not running and does not start.
    """
    stopped = stopped or threading.Event()
    engine = capabilities(spec.engine)
    if issubclass(engine, JobEngine):
        return StartedEngine(engine.versions(spec, start_timeout=start_timeout, stopped=stopped), spec.in_flight())
    timeouts = EngineTimeouts(request_timeout, start_timeout, idle_seconds, HANG_MARGIN)
    return _start(spec, timeouts, stopped, on_death or _ignore)


def _start(
    spec: ModelSpec, timeouts: EngineTimeouts, stopped: threading.Event, on_death: Callable[[EngineDeath], None]
) -> StartedEngine:
    """Start every replica that is not running. Return versions and capacity of the first that is there.

    The callers take in the others as they come.
    """
    deaths: dict[str, EngineDeath] = {}
    for _ in range(START_ATTEMPTS):
        began = time.monotonic()
        handles = [get_or_create_engine(spec, timeouts.request_timeout, replica) for replica in range(spec.replicas)]
        starts = {handle.ready.remote(timeouts.idle_seconds): handle for handle in handles}
        done, missing = wait(list(starts), stopped, timeout=gpu_eviction.PLACING_SECONDS)
        if done:
            # The others get as long again, so that a cold start usually has all of them.
            _, missing = wait(list(starts), stopped, num_returns=len(starts), timeout=time.monotonic() - began)
        if missing and gpus(spec):
            gpu_eviction.evict_idle(spec, handles, stopped)
        before = set(deaths)  # a dead actor keeps its name until the cluster has noted its death
        started = _first(spec, starts, timeouts.start_timeout, stopped, deaths)
        for engine in deaths.keys() - before:
            on_death(deaths[engine])
        if started is not None:
            return started
    reason = "".join(f": {last.reason}" for last in list(deaths.values())[-1:])
    raise EngineStartError(f"engine {spec.engine} of model {spec.name} ended each time it was started{reason}")


def _first(
    spec: ModelSpec,
    starts: dict[ray.ObjectRef, ActorHandle],
    timeout: float,
    stopped: threading.Event,
    deaths: dict[str, EngineDeath],
) -> StartedEngine | None:
    """Return the first replica that is there. None if all had no work and stopped just now, or died.

    Those that died are added to `deaths`, by the engine's id.

    Raises:
        Stopped: `stopped` is set.
        EngineStartError: no replica is there in time, none could start, or the cluster has room for none.
        UnavailableError: the nodes of the replicas do not answer.
    """
    failure: EngineStartError | UnavailableError | None = None
    began = time.monotonic()
    replicas = {actor_id(handle): replica for replica, handle in enumerate(starts.values())}
    while starts:
        done, _ = wait(list(starts), stopped, timeout=min(timeout, PLACE_LOOK_SECONDS))
        if not done:
            seconds = time.monotonic() - began
            # A process that is placed may take long to start on a busy node; one that fits on none is told from it.
            patience = gpu_eviction.PLACING_SECONDS if fits_no_node(gpus(spec)) else UNPLACED_SECONDS
            unplaced = seconds >= patience and are_unplaced(starts.values())
            if seconds < timeout and not unplaced:
                continue
            reason = no_place(spec, gpus(spec)) if unplaced else start_timed_out(spec, timeout)
            for handle in starts.values():
                ray.kill(handle)
            raise failure or EngineStartError(reason)
        handle = starts.pop(done[0])
        try:
            started: StartedEngine | None = ray.get(done[0])
        except RayTaskError as error:
            ray.kill(handle)
            failure = start_error(spec, error)
        except ActorUnavailableError as error:
            failure = failure or UnavailableError(f"the Ray node of model {spec.name} does not answer: {error}")
        except RayActorError as error:
            log.info("engine ended at its start: %s", error, extra={"model": spec.name})
            engine = actor_id(handle)
            if not was_stopped(error):
                deaths.setdefault(
                    engine, EngineDeath(spec.name, engine, replicas[engine], _why(error), 0, "starts_again")
                )
        else:
            if started is not None:
                return started
    if failure is not None:
        raise failure
    return None


def _drop(spec: ModelSpec, timeouts: EngineTimeouts, name: str) -> None:
    """Cancel the run's remaining requests in the engines, and replicas that still wait for room: nobody needs them."""
    alive = engine_actors()
    for replica in range(spec.replicas):
        handle = alive.get(actor_name(spec, timeouts.request_timeout, replica))
        if handle is not None and actor_state(handle) in UNPLACED:
            ray.kill(handle)
        elif handle is not None:
            handle.drop.remote(name)


def _ignore(_: EngineDeath) -> None:
    """Nobody wants to know of deaths."""


def _quieten() -> None:
    """Silence Ray Data, which logs progress reports in the process that iterates."""
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
