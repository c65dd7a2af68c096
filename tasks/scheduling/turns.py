"""Turns of projects at validation and finishing, as they have them at the engines.

A message names a batch or a job, but its worker does what belongs to the project whose last turn was the longest ago.
A message whose own work still waits after that is sent again: all that waits has a message.
"""

import time
from collections.abc import Callable, Mapping, Sequence

import redis
from sqlalchemy.orm import Session

from batchyard.errors import UnavailableError
from store.work import turns
from store.work.turns import Noun, Step, Waiting
from tasks.context import AppContext

TURNS = "batchyard:turns"
"""The sorted set in Redis with the time of each project's last turn."""
KEPT_SECONDS = 3600.0
TRIES = 8
"""Work that another worker has begun meanwhile leaves its turn to the next one, so often at most."""


def take(
    context: AppContext,
    named: tuple[Step, Noun, str],
    waiting: Callable[[Session], Sequence[Waiting]],
    run: Mapping[tuple[Step, Noun], Callable[[str], bool]],
    send_again: Callable[[], None],
) -> None:
    """Do one step of the project whose turn it is.

    Work that has failed before is in nobody's turn, so its own message does it. `waiting` returns what could be done,
    the oldest of each project; `run` returns False if another worker does it, or did. `send_again` is called if the
    work that the message names still waits, since other work was done.
    """
    step, noun, work_id = named
    with context.database.read() as session:
        failed = turns.has_failed(session, noun, work_id)
    if failed and run[step, noun](work_id):
        return
    tried: set[Waiting] = set()
    for _ in range(TRIES):
        with context.database.read() as session:
            open_ = [one for one in waiting(session) if one not in tried]
        if not open_:
            break
        chosen = _chosen(context, open_)
        done = True
        try:
            done = run[chosen.step, chosen.noun](chosen.id)
        except UnavailableError:  # the message is tried again as it is
            done = False
            raise
        finally:  # whatever is wrong with others' work
            if done and (chosen.step, chosen.noun, chosen.id) != named:
                with context.database.read() as session:
                    waits = turns.is_waiting(session, *named)
                if waits:
                    send_again()
        if done:
            return
        tried.add(chosen)
    run[step, noun](work_id)


def _chosen(context: AppContext, waiting: Sequence[Waiting]) -> Waiting:
    """Return what belongs to the project whose last turn was the longest ago, and give it the turn."""
    projects = list({one.project_id for one in waiting})
    if len(projects) == 1:
        return min(waiting, key=lambda one: one.id.partition("_")[2])
    try:
        scores = context.redis.zmscore(TURNS, projects)
        last = {project: score or 0.0 for project, score in zip(projects, scores, strict=True)}
        chosen = min(waiting, key=lambda one: (last[one.project_id], one.id.partition("_")[2]))
        now = time.time()
        context.redis.zadd(TURNS, {chosen.project_id: now})
        context.redis.zremrangebyscore(TURNS, 0, now - KEPT_SECONDS)
    except redis.RedisError:
        return waiting[0]
    return chosen
