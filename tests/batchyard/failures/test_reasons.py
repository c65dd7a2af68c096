"""A reason is one line of whole sentences: the cause, what memory there was, and the remedy."""

from __future__ import annotations

from batchyard.failures.endings import ending
from batchyard.failures.reasons import MAX_CAUSE, concerns_memory, explained

MEMORY = "2 s before, its processes had 1.2 GiB and 0.3 of 23.4 GiB were free"


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


def test_memory_is_told_of_where_it_may_be_the_cause() -> None:
    assert concerns_memory("RuntimeError: can't allocate memory") and concerns_memory("was ended by SIGSEGV")
    assert not concerns_memory("engine_args.x: no such argument") and not concerns_memory("RuntimeError: odd")
