"""A reason is one line of whole sentences: the cause, what memory there was, and the remedy."""

from __future__ import annotations

import pytest

from batchyard.failures.reasons import MAX_CAUSE, actor_death, concerns_memory, ending, explained

MEMORY = "2 s before, its processes had 1.2 GiB and 0.3 of 23.4 GiB were free"
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


def test_a_killed_process_is_explained_with_the_memory_that_it_had() -> None:
    killed = f"vLLM's engine process {ending(-9)}"
    assert explained(killed, MEMORY) == (
        f"vLLM's engine process was ended by SIGKILL ({MEMORY}). Remedy: see the kernel's log for its out-of-memory "
        "killer; lower engine_args.max_num_seqs or kv_cache_memory_bytes, or take a larger machine"
    )
    somebody = explained(killed, f"{MEMORY}; the kernel ended no process for want of memory")
    assert "out-of-memory killer" not in somebody and "find what on this machine ends processes" in somebody


def test_a_reason_is_not_explained_twice() -> None:
    reason = explained("OSError: [Errno 28] No space left on device")
    assert explained(f"engine vllm of model mini does not start: {reason}").count("Remedy") == 1


def test_what_is_too_long_loses_whole_sentences_and_never_the_one_that_the_remedy_rests_on() -> None:
    start = "RuntimeError: it failed. "
    many = start + "It did so again and again. " * 40
    assert (
        explained(many).startswith(start) and explained(many).endswith("again.") and len(explained(many)) <= MAX_CAUSE
    )
    late = explained(many + "Then there was No space left on device. " + "And more. " * 40)
    assert late.startswith("Then there was No space left on device. Remedy: make room")


def test_what_pydantic_repeats_is_left_out() -> None:
    error = (
        "1 validation error for SchedulerConfig\n  Value error, max_num_batched_tokens (128) must be greater than or "
        "equal to max_num_seqs (256). [type=value_error, input_value=ArgsKwargs((), {'runner_typ...[1]}), "
        "input_type=ArgsKwargs]\n    For further information visit https://errors.pydantic.dev/2.12/v/value_error"
    )
    assert explained(error) == (
        "1 validation error for SchedulerConfig Value error, max_num_batched_tokens (128) must be greater than or "
        "equal to max_num_seqs (256). Remedy: set engine_args.max_num_batched_tokens to 256 at least"
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


def test_memory_is_told_of_where_it_may_be_the_cause() -> None:
    assert concerns_memory("RuntimeError: can't allocate memory") and concerns_memory("was ended by SIGSEGV")
    assert not concerns_memory("engine_args.x: no such argument") and not concerns_memory("RuntimeError: odd")
