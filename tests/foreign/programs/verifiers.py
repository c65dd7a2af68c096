"""Read traces as verifiers does, and print what a trainer takes of each: its reward, and of each branch the tokens."""

import json
import sys
from pathlib import Path

from verifiers.v1.trace import Trace

traces = [Trace.model_validate_json(line) for line in Path(sys.argv[1]).read_text().splitlines()]
print(
    json.dumps(
        [
            {
                "id": trace.id,
                "reward": trace.reward,
                "has_error": trace.has_error,
                "stop": trace.stop_condition,
                "branches": [
                    {"token_ids": branch.token_ids, "mask": branch.sampled_mask, "logprobs": branch.logprobs}
                    for branch in trace.branches
                ],
            }
            for trace in traces
        ]
    )
)
