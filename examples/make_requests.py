"""Writes the example request files: held-out problems in OpenAI's batch format, their answers in the metadata."""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "models"))

from problems import TASKS, held_out  # noqa: E402


def requests(per_task: int, seed: int, model: str) -> Iterator[dict[str, object]]:
    """Chat completion requests, the tasks taking turns; `custom_id` is task and number, as in `sum-0001`."""
    problems = zip(*(held_out(task, per_task, seed) for task in TASKS), strict=True)
    for number, turn in enumerate(problems, start=1):
        for problem in turn:
            yield {
                "custom_id": f"{problem.task}-{number:04}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {
                    "model": model,
                    "messages": [{"role": "user", "content": problem.prompt}],
                    "max_tokens": 32,
                    "temperature": 0,
                    "metadata": {"task": problem.task, "expected": problem.answer},
                },
            }


def write(path: Path, per_task: int, seed: int, model: str) -> None:
    """One request per line, `per_task` for every task."""
    path.write_text("".join(json.dumps(request) + "\n" for request in requests(per_task, seed, model)))


def write_items(path: Path, per_task: int, seed: int) -> None:
    """An item of a job per line: `custom_id`, `prompt`, and the right `answer`."""
    items = (
        {"custom_id": f"{problem.task}-{number:04}", "prompt": problem.prompt, "answer": problem.answer}
        for task in TASKS
        for number, problem in enumerate(held_out(task, per_task, seed), start=1)
    )
    path.write_text("".join(json.dumps(item) + "\n" for item in items))


def main() -> None:
    """Writes `requests.jsonl`, `quickstart.jsonl`, `panel.jsonl` and `rollout.jsonl`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-task", type=int, default=300, help="requests per task (default %(default)s)")
    parser.add_argument("--seed", type=int, default=11, help="seed of the problems (default %(default)s)")
    parser.add_argument("--model", default="mini", help="model the requests name (default %(default)s)")
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write into (default: here)")
    options = parser.parse_args()
    write(options.out / "requests.jsonl", options.per_task, options.seed, options.model)
    write(options.out / "quickstart.jsonl", 2, options.seed + 1, options.model)
    write_items(options.out / "panel.jsonl", 3, options.seed + 2)
    write_items(options.out / "rollout.jsonl", 10, options.seed + 3)


if __name__ == "__main__":
    main()
