"""Real `vllm serve` that a stack starts and owns: its processes are killed amid a batch, and each line is answered."""

from __future__ import annotations

import shlex
import signal
from collections import Counter

import psutil
import pytest

from batchyard.models import vllm_installed
from inference.engines.openai import supervisor
from tests.conftest import StartStack
from tests.support.stacks import RunningStack, a_chat
from tests.support.vllm_commands import ENVIRONMENT, flags
from tests.support.vllm_engines import MINI, engine_core

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not vllm_installed(), reason="vLLM is not installed"),
]
ROWS = 400


@pytest.fixture(scope="module")
def stack(start_stack: StartStack) -> RunningStack:
    command = shlex.join(["vllm", "serve", *flags(MINI, "theirs"), "--host", "{host}", "--port", "{port}"])
    variables = ", ".join(f'{name} = "{value}"' for name, value in ENVIRONMENT.items())
    return start_stack(
        f'[models.mini]\nengine = "server"\ncommand = "{command}"\nenv = {{ {variables} }}\nmax_in_flight = 64\n'
    )


def processes(stack: RunningStack) -> dict[str, psutil.Process]:
    """The server's processes: their supervisor, the one that answers, and the one in which vLLM computes."""
    (parent,) = (process for process in stack.processes("ray") if supervisor.__name__ in process.cmdline())
    (server,) = parent.children()
    return {"supervisor": parent, "server": server, "core": engine_core(server.children(recursive=True))}


@pytest.mark.exhaustive  # test_owned_servers.py kills a server with a child in a session of its own, as vLLM's core is
@pytest.mark.parametrize("victim", ["server", "core"])
def test_a_killed_process_of_vllm_loses_no_line_and_leaves_nothing(stack: RunningStack, victim: str) -> None:
    rows = [
        a_chat(str(number), f"What is {number} + 7?", model="mini", max_tokens=32, ignore_eos=True, temperature=0)
        for number in range(ROWS)
    ]
    batch = stack.wait(stack.submit(rows), until=lambda batch: batch.request_counts.completed > 20, seconds=240)
    assert batch.request_counts.completed < ROWS
    before = processes(stack)
    before[victim].send_signal(signal.SIGKILL)
    batch = stack.wait(batch, seconds=240)
    assert (batch.status, batch.request_counts.completed) == ("completed", ROWS)
    assert Counter(line["custom_id"] for line in stack.lines(batch.output_file_id)) == Counter(map(str, range(ROWS)))
    assert "the server" in batch.batchyard["last_engine_death"]["reason"]
    assert not any(process.is_running() for process in before.values())
