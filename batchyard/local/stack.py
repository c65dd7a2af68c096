"""The local stack: all processes of a deployment on one machine, started in order, restarted, ended together."""

from __future__ import annotations

import http.client
import json
import logging
import math
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import Literal

from batchyard import proxies, wording
from batchyard.endpoints import live_wire
from batchyard.errors import BatchyardError, ConfigurationError
from batchyard.local import children, ports, process, services
from batchyard.local.data_folder import DataFolder
from batchyard.local.fork_server import ForkServer
from batchyard.local.process import ChildProcess
from batchyard.models import ModelSpec
from batchyard.settings import Settings

log = logging.getLogger(__name__)

START_SECONDS = 180
REDIS_SECONDS = 5
# Ray ends itself if a busy machine takes 15 s to start one of its agents.
START_ATTEMPTS = 3
START_POLL_SECONDS = 0.05
POLL_SECONDS = 0.25
"""While all runs, ended processes are seen so soon. A signal is seen at once."""
TELL_SECONDS = 2.0
"""Between two lines about what the end still waits for."""
COUNT_SECONDS = 3.0
"""The end waits this long for a number out of the database, half a second of it for modules that only that needs."""
# The order of the end. The processes of one group end at the same time.
_END_ORDER = (("gateway", "web", "beat", "flower", "worker", "housekeeper", "webhooks"), ("ray",), ("redis",))


class Stack:
    """A whole deployment on this machine.

    A broker or a Ray cluster that the settings name (REDIS_URL, RAY_ADDRESS) is used as it is. Otherwise the stack
    starts its own.

    Raises ConfigurationError: settings, models, the data folder, a port or the Ray cluster cannot be used. Nothing has
    started then.
    """

    def __init__(
        self, settings: Settings, *, host: str = "127.0.0.1", port: int = 8000, flower_port: int = 5555
    ) -> None:
        place = settings.data.resolve()
        # That of the process that forks the services: what they cannot get any later.
        environment = {**os.environ, **services.import_path(), **services.HEAPS, "PYTHONUNBUFFERED": "1"}
        # This process keeps no modules that are needed once. What they import there, services need, too.
        self._fork_server = ForkServer(environment, place)
        with ExitStack() as refused:
            refused.callback(self._fork_server.close)
            self.models: dict[str, ModelSpec] = self._fork_server.call(_served_models, settings)
            if settings.ray_address != services.OWN_CLUSTER:
                with closing(ForkServer(environment, place)) as other:  # Ray's client cannot live in a forked copy
                    other.call(services.check_cluster, settings.ray_address)
            if "redis_url" in settings.model_fields_set:
                self._fork_server.call(_check_redis, settings.redis_url)
            self.folder = DataFolder(settings.data)
            self.folder.hold()
            refused.callback(self.folder.release)
            host = host.removeprefix("[").removesuffix("]")  # as URLs have an address of IPv6
            self.settings, self.host = settings, host
            self._ports = ports.plan(host, port, flower_port)
            self.warnings: list[str] = self._fork_server.call(_prepare_database, settings, self.folder, self.models)
            numbers = {name: held.number for name, held in self._ports.items()}
            forks = self._fork_server if sys.platform == "linux" else None
            if forks is None:
                self._fork_server.close()  # a system's libraries may not survive a fork there
            self.children = children.of(settings, self.folder, host, numbers, forks)
            refused.pop_all()
        self._http = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy leads to this machine
        self._signals = 0
        self._say: Callable[[str], None] = log.info
        self._told = ""

    @property
    def port(self) -> int:
        return self._ports["web"].number

    @property
    def url(self) -> str:
        return f"http://{proxies.address(children.reached_at(self.host), self.port)}"

    @property
    def flower_url(self) -> str:
        return f"http://127.0.0.1:{self._ports['flower'].number}"

    def run(self, ready: Callable[[], None], say: Callable[[str], None] = log.info) -> None:
        """Start all, call `ready`, restart what fails until SIGTERM, SIGINT or SIGHUP, end all.

        A second of these signals kills what still runs. SIGHUP stays ignored where `nohup` has it ignored.

        `say`: called with what the start or the end waits for.
        Raises BatchyardError: a process ended before all were ready; names it, its exit code and its log's last line.
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._count_signal)
        self._say = say
        if few := live_wire.few_connections():
            self._say(f"Only {few} open files are allowed here: many clients at once get 503. Raise it (ulimit -n).")
        try:
            self._start()
            if not self._signals:
                self.folder.write_state(self.url, self.flower_url)
                ready()
            while not self._signals:
                time.sleep(POLL_SECONDS)
                self._restart_ended()
        finally:
            self._stop()
            if self._signals and (unfinished := self._counted("work")):
                works, them = ("batch or job has", "it") if unfinished == 1 else ("batches and jobs have", "them")
                start = f"start the stack on {self.folder.path} again"
                self._say(f"{unfinished:,} {works} not ended: to go on with {them}, {start}.")

    def _count_signal(self, *_: object) -> None:
        # No event: whoever is interrupted in its `wait` holds its lock.
        self._signals += 1

    def _start(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        for port in self._ports.values():
            port.share()
        if self.children["worker"].fork_server is not None:
            self._fork_server.begin_imports(self.children["worker"].environment)
        if "redis" in self.children:
            self.children["redis"].start()
            self._wait_for(self.children["redis"].ready, deadline, "redis")
        for child in self.children.values():
            if child.process is None:
                child.start()
        self._tell(f"Started {', '.join(self.children)}; they take some seconds.")
        for child in self.children.values():
            self._wait_for(child.ready, deadline, child.name)
        self._wait_for(lambda: self._unready_reason() is None, deadline, "the stack")

    def _wait_for(self, condition: Callable[[], bool], deadline: float, name: str) -> None:
        while not self._signals and not condition():
            self._tell(f"Waiting for {self._missing() if name == 'the stack' else name}.")
            self._restart_ended(START_ATTEMPTS)
            if time.monotonic() > deadline:
                raise BatchyardError(
                    f"{name} was not ready within {START_SECONDS} s: {self._unready_reason()}; see {self.folder.logs}"
                )
            time.sleep(START_POLL_SECONDS)

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._say(text)

    def _missing(self) -> str:
        """The parts that do not answer yet, by their names in /readyz."""
        try:
            parts = json.loads(self._unready_reason() or "{}").get("parts", {})
        except (ValueError, AttributeError):
            return "the web app"
        return ", ".join(name for name, state in parts.items() if state != "ok") or "the web app"

    def _restart_ended(self, attempts: float = math.inf) -> None:
        """Restart ended processes after their delay. Raises BatchyardError if one has ended `attempts` times."""
        for child in self.children.values():
            if child.due is not None:
                if time.monotonic() < child.due:
                    continue
                try:
                    child.start()
                except BatchyardError as error:
                    delay = child.plan_restart()
                    log.error("%s was not started: %s; trying again in %.0f s", child.name, error, delay)
                else:
                    log.warning("%s started again (pid %s)", child.name, child.process and child.process.pid)
            elif child.exit_code() is not None:
                ending = f"{child.name} ended with exit code {child.exit_code()}: {process.last_line(child.log)}"
                if child.failures + 1 >= attempts:
                    raise BatchyardError(f"{ending} ({child.log})")
                log.error("%s; starting it again in %.0f s", ending, child.plan_restart())
            else:
                process.rotate(child.log)

    def _stop(self) -> None:
        """End all processes, group by group; kill those that are late, and all at the second signal."""
        for names in _END_ORDER:
            group = [self.children[name] for name in names if name in self.children]
            self._end(group)
            if self._signals > 1:
                self._tell("Stopping at once: kills what still runs.")
                break
            if late := [child.tag for child in group if child.runs()]:
                process.kill_tagged(*late)
        process.kill_tagged(str(self.folder.path))
        for child in self.children.values():
            child.runs()  # waits for the ended process, so that it is no zombie
            child.pid_file.unlink(missing_ok=True)
        self._fork_server.close()
        for port in self._ports.values():
            port.close()
        self.folder.release()

    def _end(self, group: Sequence[ChildProcess]) -> None:
        """Ask these to end, and wait for them at most their grace, or until the second signal."""
        for child in group:
            child.signal_end()
        began, told_at = time.monotonic(), -math.inf
        segments = ""
        if any(child.name == "worker" for child in group):
            running = self._counted("segments")
            unknown = f"segments not counted within {COUNT_SECONDS:.0f} s"
            segments = unknown if running is None else f"{wording.count(running, 'segment')} running"
        while late := [child for child in group if child.runs() and time.monotonic() - began < child.grace]:
            if self._signals > 1:
                return
            if time.monotonic() - told_at > TELL_SECONDS:
                told_at = time.monotonic()
                names = [f"{child.name} ({segments})" if child.name == "worker" else child.name for child in late]
                self._tell(f"Stopping: waits for {', '.join(names)}. Ctrl-C again ends all at once.")
            time.sleep(0.02)

    def _counted(self, what: Literal["segments", "work"]) -> int | None:
        """Return the number of running segments, or of batches and jobs that have not ended.

        It is 0 if the database is away, and None if that is not known within COUNT_SECONDS.
        """
        counts: list[int] = []

        def query() -> None:
            from store import segments
            from store.database import Database
            from store.work import overview

            count = segments.running if what == "segments" else overview.unfinished
            try:
                with closing(Database(self.settings.database)) as database, database.read() as session:
                    counts.append(count(session))
            except BatchyardError:
                counts.append(0)

        thread = threading.Thread(target=query, daemon=True)
        thread.start()
        thread.join(COUNT_SECONDS)
        return counts[0] if counts else None

    def _unready_reason(self) -> str | None:
        """The answer or error of /readyz; None if the stack is ready."""
        try:
            with self._http.open(f"{self.url}/readyz", timeout=5):
                return None
        except urllib.error.HTTPError as error:
            return error.read(1000).decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            return str(error) or type(error).__name__


def _served_models(settings: Settings) -> dict[str, ModelSpec]:
    """Return the models; raise ConfigurationError for a model, step or recipe that cannot be used."""
    from tasks.context import served_models
    from tasks.port import port
    from tasks.steps.registry import STEPS

    models = served_models(settings)
    STEPS.load()
    port().prepare(settings)
    return models


def _check_redis(url: str) -> None:
    """Raise ConfigurationError if the Redis server of the settings does not answer."""
    import redis

    try:
        with redis.Redis.from_url(url, socket_timeout=REDIS_SECONDS, socket_connect_timeout=REDIS_SECONDS) as client:
            client.ping()
    except (redis.RedisError, OSError, ValueError) as error:
        remedy = "start it, or leave it out"
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            remedy = "let SSL_CERT_FILE, or ?ssl_ca_certs=FILE of the URL, name the authority of its certificate"
        reason = str(error).removesuffix(".")
        raise ConfigurationError(f"REDIS_URL: the server cannot be used: {reason}; {remedy}") from error


def _prepare_database(settings: Settings, folder: DataFolder, models: dict[str, ModelSpec]) -> list[str]:
    """Bring the schema up to date, and create the admin key on first use. Return warnings about budgets."""
    from store import keys
    from store.accounting import budgets
    from store.database import Database

    with closing(Database(settings.database)) as database:
        database.upgrade()
        with database.write() as session:
            folder.secret("admin.key", lambda: keys.create_admin(session).key)
            return budgets.without_effect(session, models)
