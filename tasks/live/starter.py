"""The starter: a thread of a worker that starts engines for live requests, and publishes where they answer."""

from __future__ import annotations

import logging
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import redis

from batchyard.errors import BatchyardError, EngineStartError, GpuBusy, Stopped
from batchyard.models import ModelSpec
from inference.answers import Death
from store import holds, speeds
from tasks.context import AppContext
from tasks.execution import deaths, engine_status, segment
from tasks.execution.cluster_watch import WATCH, is_connected
from tasks.live import addresses, demand
from tasks.live.addresses import EngineAddress
from tasks.scheduling import gpu_sharing
from tasks.scheduling.throughput import START_SECONDS

if TYPE_CHECKING:
    from inference.live import LiveReplicas

log = logging.getLogger(__name__)

LISTEN_SECONDS = 5.0
"""Longest wait for a word of demand, after which the present demand is checked."""
CHECK_SECONDS = 5.0
"""Between two checks for engines that have died."""
AWAY_SECONDS = 1.0
"""Between two attempts while Redis is away."""
START_THREADS = 32
"""Engines that start for live requests at once, each with a thread that waits for it. One that finds no place in the
cluster waits long, and must not keep others from starting."""


class Starter:
    """Starts wanted engines until it is stopped. Demand is told again every few seconds, so nothing is kept here."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._stopped = threading.Event()
        self._busy: set[str] = set()
        self._status_at = self._checked_at = -math.inf
        self._dead: list[Death] = []
        self._lock = threading.Lock()
        self._replicas: LiveReplicas | None = None
        self._pool = ThreadPoolExecutor(START_THREADS, thread_name_prefix="live-start")

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                for _ in demand.heard(self._context, LISTEN_SECONDS):
                    if self._stopped.is_set():
                        return
                    if WATCH.lost():
                        self._replicas = None
                        segment.leave(self._context, "the Ray cluster went away")
                    self._start_wanted()
                    if is_connected() and time.monotonic() - self._checked_at >= CHECK_SECONDS:
                        self._checked_at = math.inf  # until this check has ended
                        self._pool.submit(self._check_for_deaths)
            except redis.RedisError as error:
                log.warning("live demand not read: %s", error)
                self._stopped.wait(AWAY_SECONDS)
            except RuntimeError:  # of the pool, once `stop` has shut it down
                if not self._stopped.is_set():
                    raise

    def stop(self) -> None:
        """End `run`, and the waits for engines."""
        self._stopped.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start_wanted(self) -> None:
        self._context = self._context.fresh()
        always = {name for name, spec in self._context.models.items() if spec.live.mode == "always"}
        for model, engine in demand.suspects(self._context):
            if model in self._context.models:
                self._pool.submit(self._end_if_hanging, self._context.models[model], engine)
        for name in demand.wanted(self._context) | always:
            spec = self._context.models.get(name)
            if spec is not None and demand.answers_live(spec):
                with self._lock:
                    if name in self._busy:
                        continue
                    self._busy.add(name)
                self._pool.submit(self._start, spec)

    def _end_if_hanging(self, spec: ModelSpec, engine: str) -> None:
        try:
            death = self._connected().end_if_hanging(spec, engine)
        except BatchyardError as error:
            log.warning("engine not looked at: %s", error, extra={"model": spec.name, "engine": engine})
            return
        if death is not None:
            self._record(death)

    def _check_for_deaths(self) -> None:
        """Record deaths that no caller has reported since the last check."""
        from inference import live
        from inference.residents import directory

        try:
            unreported, self._dead = self._dead, live.deaths()
            for death in unreported:
                self._record(death)
            directory.engine_actors()  # which the next check reads
        except Exception:
            log.exception("engines that may have died were not looked at")
        finally:
            self._checked_at = time.monotonic()

    def _connected(self) -> LiveReplicas:
        """Return the replicas of the cluster. Raises Stopped, UnavailableError or EngineStartError."""
        from inference.live import LiveReplicas

        self._context.join_ray(self._stopped)
        with self._lock:
            if self._replicas is None:
                self._replicas = LiveReplicas(engine_status.timeouts(self._context))
            return self._replicas

    def _start(self, spec: ModelSpec) -> None:
        try:
            self._publish(spec)
        except Stopped:
            pass
        except GpuBusy as error:
            log.info("live requests wait for a GPU: %s", error, extra={"model": spec.name})
            gpu_sharing.record_demand(self._context, spec.name, int(time.time()), error.holders)
        except EngineStartError as error:
            log.error("no engine for live requests: %s", error, extra={"model": spec.name})
            try:
                addresses.fail(self._context, spec.name, error.message)
                with self._context.database.write() as session:
                    holds.hold(session, spec.name, error.message)
            except (BatchyardError, redis.RedisError) as failure:
                log.warning("failed start not recorded: %s", failure, extra={"model": spec.name})
        except (BatchyardError, redis.RedisError) as error:
            log.warning("no engine for live requests: %s", error, extra={"model": spec.name})
        except Exception:
            log.exception("no engine for live requests", extra={"model": spec.name})
        finally:
            with self._lock:
                self._busy.discard(spec.name)

    def _publish(self, spec: ModelSpec) -> None:
        from inference import live
        from inference.residents import directory

        replicas = self._connected()
        for death in live.deaths(spec.name):
            self._record(death)
        engines = replicas.running(spec)
        if not engines:
            began = time.monotonic()
            with engine_status.starting(self._context, spec.name) as is_whole:
                engines = replicas.start(spec, self._stopped, self._record)
            passed = time.monotonic() - began
            gpu_sharing.clear_demand(self._context, spec.name)
            with self._context.database.write() as session:
                holds.engine_started(session, spec.name)
                if is_whole and passed > START_SECONDS:
                    speeds.measure_duration(session, "start", spec.name, spec.config_sha256, passed)
            self._status_at = -math.inf
        addresses.publish(
            self._context, spec.name, [EngineAddress(*engine, config_sha256=spec.config_sha256) for engine in engines]
        )
        # What the engines do is published here, for they may do it without any segment, which would publish it.
        with self._lock:
            due = time.monotonic() - self._status_at >= engine_status.INTERVAL_SECONDS
            self._status_at = time.monotonic() if due else self._status_at
        if due:
            engine_status.publish(self._context, directory.states(timeout=1.0))

    def _record(self, death: Death) -> None:
        """Record a death, unless a batch that had requests there did."""
        log.error("engine died: %s", death.reason, extra={"model": death.model, "replica": death.replica})
        deaths.record(self._context, death, None)
