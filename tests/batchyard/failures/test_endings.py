"""The end of a process is told as people know it, without guesses at what may have ended it."""

from __future__ import annotations

import pytest

from batchyard.failures.endings import actor_death, ending
from batchyard.failures.reasons import explained

RAY = (
    "The actor died unexpectedly before finishing this task.\n\tclass_name: EngineActor\n\tactor_id: 5f\n\tpid: 7\n"
    "\tname: engine:mini:0.1.0:5f:t600:0\n\tnamespace: batchyard\n\tip: 127.0.0.1\nThe actor is dead because its "
    "worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a "
    "connection error code 2. End of file. There are some potential root causes. (1) The process is killed by SIGKILL "
    "by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The worker is crashed unexpectedly "
    "due to SIGSEGV or other unexpected errors."
)
RAY_MEMORY = (
    "The actor is dead because its worker process has died. Worker exit type: USER_ERROR Worker exit detail: Task was "
    "killed due to the node running low on memory. Memory on the node (IP: 10.0.0.7) where the task was running was "
    "32.53GB / 33.28GB (0.977449), which exceeds the memory usage threshold of 0.95. Refer to the documentation."
)


@pytest.mark.parametrize(
    ("code", "text"),
    [(-9, "was ended by SIGKILL"), (-4, "was ended by SIGILL"), (3, "ended with exit code 3"), (-63, "by signal 63")],
)
def test_an_exit_code_is_named_as_people_know_it(code: int, text: str) -> None:
    assert ending(code).endswith(text)


def test_the_death_of_an_actor_is_told_without_rays_list_of_what_may_end_a_process() -> None:
    assert explained(actor_death(RAY)) == (
        "the process of the engine's actor ended without a word: it was killed, or it crashed. Remedy: see "
        "`batchyard logs`, and the kernel's log for its out-of-memory killer"
    )
    assert actor_death(RAY_MEMORY) == (
        "Ray ended the engine's process, since the node was running low on memory. Memory on the node (IP: 10.0.0.7) "
        "where the task was running was 32.53GB / 33.28GB (0.977449), which exceeds the memory usage threshold of 0.95"
    )
    assert actor_death("The actor died because its node has died.") == "the node of the engine's process has died"
    assert actor_death("The actor is dead because it was killed by `ray.kill`.") == "it was killed by `ray.kill`."
