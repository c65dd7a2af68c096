"""Tab completes commands, ids and models."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.rows import until
from tests.support.stacks import RunningStack, a_chat


def test_tab_completes_commands_batches_and_models(stack: RunningStack) -> None:
    batch = stack.submit([a_chat("a", "hello")])
    script = """
    eval "$(_BATCHYARD_COMPLETE=bash_source batchyard)"
    compopt() { :; }  # only bash itself may call the real one
    offer() {
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
        _batchyard_completion batchyard; echo "${COMPREPLY[@]}"
    }
    offer batchyard sta
    offer batchyard status batch_
    offer batchyard run --model nano-r
    BATCHYARD_URL=http://127.0.0.1:9 offer batchyard status batch_
    """
    environment = {"BATCHYARD_URL": stack.url, "BATCHYARD_API_KEY": stack.key}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def offered() -> bool:
        result = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, env={**os.environ, **environment, "PATH": path}
        )
        assert result.stderr == ""
        commands, batches, names, away = result.stdout.split("\n")[:4]
        assert (commands, away) == ("status", "")
        return batch.id in batches.split() and names == "nano-rerank"

    until(offered, 30)  # who has pressed Tab waits for a server for seconds only
