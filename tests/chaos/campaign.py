"""One campaign, from the hosts' start to the audit."""

from __future__ import annotations

import logging
import threading
import time

from tests.chaos.audit import audit
from tests.chaos.deployment import Deployment
from tests.chaos.faults import Injector, plan
from tests.chaos.monitor import Monitor
from tests.chaos.report import Result
from tests.chaos.workload import Workload

GAP_SECONDS = 3.5
"""Seconds from one fault to the next, in the mean."""
SETTLE_SECONDS = 300
"""All batches end within this long after the last fault."""

log = logging.getLogger(__name__)


def run(
    minutes: float,
    seed: int,
    *,
    gap: float = GAP_SECONDS,
    light: bool = False,
    keep: bool = False,
) -> Result:
    """Run a campaign, and return what it has shown. With `keep` the hosts' folder stays if something was wrong."""
    deployment = Deployment()
    wrong = True
    try:
        deployment.start()
        log.info("the deployment runs at %s, its folder is %s", deployment.url, deployment.folder)
        end = threading.Event()
        workload = Workload(deployment, seed, end)
        monitor = Monitor(deployment, workload)
        workload.start()
        injector = Injector(deployment, end)
        began = time.monotonic()
        planned = plan(seed, 60 * minutes, gap, light)
        log.info("%d faults are planned", len(planned))
        injector.run(planned)
        time.sleep(max(0.0, began + 60 * minutes - time.monotonic()))
        stopped = time.monotonic()
        log.info("%d faults have happened", len(injector.faults))
        end.set()
        workload.join()
        _settle(monitor, deployment, injector)
        settled = time.monotonic() - stopped
        monitor.close()
        log.info("audit after %.0f s", settled)
        audited = audit(deployment, monitor.calls, [sent.id for sent in workload.sent])
        result = Result(minutes, seed, injector, workload, monitor, audited, settled)
        wrong = bool(result.problems)
        return result
    finally:
        deployment.close(keep=keep and wrong)
        if keep and wrong:
            log.warning("logs of the hosts: %s", deployment.folder)


def _settle(monitor: Monitor, deployment: Deployment, injector: Injector) -> None:
    """Wait until all batches have ended and all is ready, at most SETTLE_SECONDS."""
    began = time.monotonic()
    while time.monotonic() < began + SETTLE_SECONDS:
        time.sleep(1)
        if not monitor.unfinished() and monitor.ready and monitor.ready[-1] > began:
            return
    log.error("not ended: %s", monitor.unfinished())
