"""Celery's configuration: `celery -A tasks.app worker`, `celery -A tasks.celery_app beat`.

It names tasks and queues and imports no task module: `tasks.celery_app` loads it by its name, and both have their
settings from batchyard.

Redis has no acknowledgement of its own and no heartbeat, so a message is only a wake-up: it names a record, and the
record's lease decides. Late acknowledgement, redelivery, restarts and two beats are harmless for that reason.
"""

from kombu import Queue

from batchyard import queues, settings

_settings = settings.load()
METRICS_SECONDS = 10.0
EVICTION_SECONDS = 60.0
COLLECTION_SECONDS = 10.0
PURGE_SECONDS = 60.0
BUDGET_SECONDS = 15.0

broker_url = _settings.broker_url
broker_connection_retry_on_startup = True
# Longer than the longest task with a limit, or Redis would deliver a running task again. A segment may run longer: its
# second message finds it running.
broker_transport_options = {"visibility_timeout": 7 * 3600, "priority_steps": list(queues.PRIORITY_STEPS)}
task_ignore_result = True

accept_content = ["json"]
task_serializer = "json"
result_serializer = "json"

task_queues = [Queue(name) for name in queues.NAMES]
task_default_queue = queues.HOUSEKEEPING
task_routes = queues.ROUTES

task_acks_late = True
task_track_started = True
worker_prefetch_multiplier = 1
# Of the tasks in processes. Threads know none: a segment ends with its completion window at the latest.
task_soft_time_limit = 6 * 3600
task_time_limit = task_soft_time_limit + 300
# Only the housekeeper has processes. It never joins Ray, whose client cannot live in a forked copy, and has no threads:
# so forks are safe, share what it has imported, and are there at once.
worker_pool_start_method = "fork"
# ray.init needs the real standard streams.
worker_redirect_stdouts = False
worker_hijack_root_logger = False
worker_proc_alive_timeout = 60.0
# KiB: a process that has grown beyond this is replaced between two tasks. Of threads see tasks/app.py.
worker_max_memory_per_child = 1_500_000
worker_send_task_events = True


def _every(task: str, seconds: float, *args: float, ticks: int = 1) -> dict[str, object]:
    """Return a periodic task. A message that waits longer than `ticks` periods expires, as the next does its work."""
    return {"task": task, "schedule": float(seconds), "args": args, "options": {"expires": ticks * seconds}}


beat_schedule = {
    # It sends the messages of forecasts, deliveries and schedules if there are any.
    "housekeeping": _every(
        "housekeeping.tick", min(_settings.housekeeping_seconds, _settings.forecast_seconds), ticks=10
    ),
    "metrics": _every("housekeeping.metrics", METRICS_SECONDS),
    "cache": _every("housekeeping.evict", EVICTION_SECONDS),
    "retention": _every("housekeeping.purge", PURGE_SECONDS),
    "budgets": _every("housekeeping.budgets", BUDGET_SECONDS),
    "garbage": _every("housekeeping.collect", COLLECTION_SECONDS, COLLECTION_SECONDS),
}
# Periodic tasks send Flower no events: they would fill its list, and say nothing about a batch.
_OF_TICKS = ("housekeeping.deadlines", "webhook.ring", "schedule.tick")
task_annotations = {
    task: {"send_events": False} for task in (*_OF_TICKS, *(entry["task"] for entry in beat_schedule.values()))
}
timezone = "UTC"
