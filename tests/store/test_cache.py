"""Cached answers are a project's own, stay within its bound, and those used longest ago go first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from sqlalchemy import func, select, update

from batchyard.settings import Settings
from store import cache, keys, projects
from store.artifacts import Artifacts
from store.cache import CHUNK
from store.database import Database
from store.records import CachedAnswer
from tasks.context import AppContext
from tasks.execution import result_cache as caches

ENGINE = {"engine": "vllm", "version": "0.32", "model_sha256": "a" * 64}


@pytest.fixture
def context(database: Database, artifacts: Artifacts) -> AppContext:
    return AppContext(Settings(), {}, database, artifacts, redis.Redis())


def answer(text: str = "x") -> dict[str, Any]:
    return cache.columns(text.encode(), input_tokens=1, cached_tokens=2, output_tokens=3)


def add(database: Database, project: str, *names: str) -> None:
    with database.write() as session:
        cache.add(session, project, {name: answer(name) for name in names})


def there(database: Database, project: str, *names: str) -> set[str]:
    with database.read() as session:
        return set(cache.find(session, project, names))


def set_limit(database: Database, project: str, size: int | None) -> None:
    with database.write() as session:
        projects.update(session, project, cache_bytes=size)


def cached_bytes(database: Database, project: str) -> int:
    with database.read() as session:
        size = session.scalar(select(func.sum(CachedAnswer.bytes)).where(CachedAnswer.project_id == project))
    return int(size or 0)


@pytest.mark.parametrize(
    ("fingerprint", "config", "engine"),
    [
        (b"other", "config", ENGINE),
        (b"print", "other", ENGINE),
        (b"print", "config", ENGINE | {"model_sha256": "b" * 64}),
        (b"print", "config", ENGINE | {"version": "0.33"}),
        (b"print", "config", ENGINE | {"dtype": "bfloat16"}),
    ],
)
def test_another_request_configuration_model_or_engine_has_another_key(
    fingerprint: bytes, config: str, engine: dict[str, str]
) -> None:
    known = cache.key(b"print", "config", ENGINE)
    assert cache.key(b"print", "config", dict(reversed(ENGINE.items()))) == known
    assert cache.key(fingerprint, config, engine) != known


def test_an_answer_comes_back_as_it_went_in_and_the_first_one_stays(database: Database, project: str) -> None:
    with database.write() as session:
        cache.add(session, project, {"a": answer('{"first": "ü"}'), "b": answer()})
        cache.add(session, project, {"a": answer('{"second": 2}')})
    with database.read() as session:
        answers = cache.find(session, project, ["a", "c"])
    (found,) = answers.values()
    assert (found.key, found.input_tokens, found.cached_tokens, found.output_tokens) == ("a", 1, 2, 3)
    assert cache.body_of(found).decode() == '{"first": "ü"}'


def test_a_project_never_sees_what_anothers_has(database: Database, project: str) -> None:
    with database.write() as session:
        keys.create(session, "other")
        other = projects.named(session, "other")
    add(database, project, "a", "b")
    add(database, other, "c")
    set_limit(database, project, 1)
    assert there(database, other, "a", "b", "c") == {"c"}
    with database.write() as session:
        cache.touch(session, other, ["a"])
        assert cache.evict(session, other, 10**6) == cached_bytes(database, other)
    assert there(database, project, "a", "b", "c") == {"a", "b"}


def test_what_was_used_longest_ago_goes_first_and_no_more_than_it_takes(
    database: Database, context: AppContext, project: str
) -> None:
    add(database, project, *"abcde")
    with database.write() as session:
        for age, name in enumerate("abcde"):
            session.execute(update(CachedAnswer).where(CachedAnswer.key == name).values(used_at=1000 - age))
        cache.touch(session, project, ["d"])
    set_limit(database, project, cached_bytes(database, project) * 3 // 5)
    caches.evict(context)
    assert there(database, project, *"abcde") == {"a", "b", "d"}
    caches.evict(context)
    assert there(database, project, *"abcde") == {"a", "b", "d"}


def test_a_cache_of_many_chunks_is_brought_down_to_its_bound(
    database: Database, context: AppContext, project: str
) -> None:
    names = [f"{number:04}" for number in range(3 * CHUNK)]
    with database.write() as session:
        cache.add(session, project, {name: answer() for name in names})
    size = cached_bytes(database, project) // len(names)
    set_limit(database, project, 10 * size + 1)
    with database.write() as session:
        assert cache.evict(session, project, 10**9) == CHUNK * size, "a transaction deletes a chunk"
    caches.evict(context)
    assert cached_bytes(database, project) == 10 * size


def test_turning_the_cache_off_deletes_what_is_in_it(database: Database, context: AppContext, project: str) -> None:
    set_limit(database, project, 10**6)
    add(database, project, "a", "b")
    caches.evict(context)
    assert there(database, project, "a", "b") == {"a", "b"}
    set_limit(database, project, None)
    caches.evict(context)
    assert cached_bytes(database, project) == 0


def test_many_may_add_use_and_evict_the_same_at_once(database: Database, project: str) -> None:
    names = [f"{number:03}" for number in range(100)]

    def work(number: int) -> None:
        shuffled = names[number:] + names[:number]
        with database.write() as session:
            cache.add(session, project, {name: answer() for name in shuffled})
        with database.write() as session:
            cache.touch(session, project, shuffled)
        if number % 5 == 0:
            with database.write() as session:
                cache.evict(session, project, 10_000)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(40)))
    assert there(database, project, *names)
