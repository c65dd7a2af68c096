"""Turns of projects at validation and finishing, as they have them at the engines.

A message names a batch or a job, but its worker does what belongs to the project whose last turn was the longest ago.
So what a project sends at once makes nobody else wait for more than what runs already. There are as many messages as
pieces of work, so each message has to do one while there is one.
"""

import time
from collections.abc import Callable, Mapping, Sequence

import redis
from sqlalchemy.orm import Session

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
) -> None:
    """Do one step of the project whose turn it is.

    Work that has failed before is in nobody's turn, so its own message does it.

    Args:
        waiting: what could be done, the oldest of each project.
        run: does it; False if another worker does, or did.
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
        if run[chosen.step, chosen.noun](chosen.id):
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
