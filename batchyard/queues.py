"""Celery's queues: their names, the routes of tasks, and the concurrency of each worker."""

import math

BATCHES = "batch_job_queue"
POST_PROCESSING = "post"
HOUSEKEEPING = "housekeeping"
WEBHOOKS = "webhooks"
JOBS = "jobs"

NAMES = (BATCHES, POST_PROCESSING, HOUSEKEEPING, WEBHOOKS, JOBS)
PRIORITY_STEPS = (0, 3, 6, 9)
"""kombu keeps one Redis list for each of these priorities of a queue."""
LATER = PRIORITY_STEPS[1]
"""The priority of validations: what was begun is finished first, however much is waiting to begin."""
WAITING = (WEBHOOKS, JOBS)
"""The queues of the worker of threads: what waits for others, or holds a job's items in its memory."""
HOUSEKEEPER = (POST_PROCESSING, HOUSEKEEPING)
"""The queues of the worker that does all for batches but run their segments."""
SPARE_PROCESSES = 2
"""Processes beside those that validate and finish batches, so that housekeeping never waits for them."""
WEBHOOK_THREADS = 20
"""Threads of the webhook worker: receivers may hang, and a waiting thread costs next to nothing."""

WEB_THREADS = 32
"""Threads of the web app. The gateway sends it no more requests at once."""
JOB_THREADS = 8
"""Threads beside those: so many jobs are advanced at once."""

ROUTES = {
    "batch.segment": {"queue": BATCHES},
    "engine.*": {"queue": BATCHES},
    "batch.validate": {"queue": POST_PROCESSING, "priority": LATER},
    "batch.advance": {"queue": POST_PROCESSING},
    "batch.merge": {"queue": POST_PROCESSING},
    "batch.finish": {"queue": POST_PROCESSING},
    "post.*": {"queue": POST_PROCESSING},
    "job.advance": {"queue": JOBS},
    "job.validate": {"queue": POST_PROCESSING, "priority": LATER},
    "job.finish": {"queue": POST_PROCESSING},
    "housekeeping.*": {"queue": HOUSEKEEPING},
    "schedule.*": {"queue": HOUSEKEEPING},
    "webhook.*": {"queue": WEBHOOKS},
}
"""The queue of each task, by its name."""


def segment_threads(max_segments: int) -> int:
    """Return how many segments may run at once, draining ones included. Each is one thread of a worker."""
    return 24 * max_segments


def housekeeper_processes(max_segments: int) -> int:
    """Return the processes of the worker that validates and finishes batches: one for two segments, and spare ones."""
    return SPARE_PROCESSES + math.ceil(max_segments / 2)
