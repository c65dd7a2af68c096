"""verifiers reads the traces of recipe `agent`, and takes rewards and tokens of them as they are."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.foreign.clients import FOLDER, bin_folder
from tests.recipes.agent.made import ROWS, run
from tests.recipes.agent.test_report import with_tokens


def read(results: Any, folder: Path) -> list[dict[str, Any]]:
    """Return what verifiers takes of the traces of a job."""
    file = folder / "traces.jsonl"
    file.write_bytes(results.artifacts["traces.jsonl"])
    program = FOLDER / "programs" / "verifiers.py"
    ended = subprocess.run(
        [bin_folder("verifiers") / "python", "-P", program, file], capture_output=True, text=True, timeout=600
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return list(json.loads(ended.stdout))


def test_verifiers_finds_each_trace_with_its_reward(tmp_path: Path) -> None:
    results, _ = run(ROWS, reward="exact", ground_truth="answer")
    traces = read(results, tmp_path)
    assert [(trace["reward"], trace["stop"]) for trace in traces] == [
        (item.result["score"], item.result["stop"]) for item in results.ended
    ]
    assert not any(trace["has_error"] for trace in traces)


def test_verifiers_finds_the_tokens_of_all_turns_and_a_mask_of_those_that_were_sampled(tmp_path: Path) -> None:
    results, _ = run(ROWS[:1], with_tokens, response_ids=True)
    ((branch,),) = (trace["branches"] for trace in read(results, tmp_path))
    assert branch["token_ids"] == [1, 2, 3, 4, 5, 6, 7]
    assert branch["mask"] == [False, False, True, True, False, True, True]
    assert [value != 0 for value in branch["logprobs"]] == branch["mask"]
