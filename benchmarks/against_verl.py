r"""Compare rewards, metrics and files of the recipe rollout with verl's own code, which is no dependency of Batchyard.

Put verl and what it imports into a folder, then run this with that folder:

    pip install --no-deps --target verl-0.9.1 verl==0.9.1 datasets dill multiprocess xxhash pandas python-dateutil \
        pytz six tensordict pyvers cloudpickle hydra-core omegaconf "antlr4-python3-runtime==4.9.*" codetiming
    python benchmarks/against_verl.py verl-0.9.1
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from batchyard.recipes import Item  # noqa: E402
from recipes import registry  # noqa: E402
from recipes.measures.tally import Sample, SampledPrompt, Tally  # noqa: E402
from tests.support.played import finished, played  # noqa: E402

PIECES = ["#### ", "####", "#", " ", "$", ",", ".", "-", "1", "42", "1,234", "0.5", "The answer is ", "\n", "é", "٣"]
TEXTS = 10_000
TABLES = 40
PROMPTS = 200
SAMPLES = 8


def compare_rewards(source: random.Random) -> str:
    """Score texts of up to some 700 characters by both methods of gsm8k."""
    from verl.utils.reward_score import gsm8k

    catalogue = registry.load(None)
    right = 0
    for _ in range(TEXTS):
        text = "".join(source.choices(PIECES, k=source.randrange(150)))
        for name, method in (("gsm8k", "strict"), ("gsm8k-flexible", "flexible")):
            answer = gsm8k.extract_solution(text, method)
            truth = answer if answer is not None and source.random() < 0.7 else "42"
            expected = gsm8k.compute_score(text, truth, method)
            outcome: Any = catalogue.reward(name)("openai/gsm8k", text, truth)
            assert (outcome["score"], outcome["pred"]) == (expected, answer), (text, truth)
            right += expected == 1
    return f"gsm8k: {TEXTS} texts, both methods: equal ({right} of {2 * TEXTS} right)"


def compare_metrics(source: random.Random) -> str:
    """Work out the metrics of random tables of scores and predictions."""
    from verl.trainer.ppo.metric_utils import process_validation_metrics

    largest, number = 0.0, 0
    for _ in range(TABLES):
        samples, binary = source.choice([1, 2, 3, 4, 7, 8, 16]), source.random() < 0.5
        sources: list[str] = []
        prompts: list[str] = []
        columns: dict[str, list[Any]] = defaultdict(list)
        tallies: dict[str, Tally] = defaultdict(Tally)
        for prompt in range(6):
            data_source = source.choice("ab")
            rows = []
            for _ in range(samples):
                score = float(source.random() < 0.4) if binary else source.uniform(-1, 1)
                pred = None if source.random() < 0.02 else source.choice("1234")
                form = source.random()
                sources.append(data_source)
                prompts.append(str(prompt))
                for name, value in (("score", score), ("pred", pred), ("form", form)):
                    columns[name].append(value)
                rows.append(Sample(True, score, score if binary else None, pred, {"form": form}))
            tallies[data_source].add(SampledPrompt(rows, samples))
        for data_source, variables in process_validation_metrics(sources, prompts, dict(columns)).items():
            ours = tallies[data_source].metrics()
            for variable, metrics in variables.items():
                for name, value in metrics.items():
                    mine = ours[name if variable == "score" else f"{variable}/{name}"]
                    largest, number = max(largest, abs(mine - value)), number + 1
    assert largest <= 1e-12, largest
    return f"metrics: {number} of {TABLES} random tables: largest difference {largest:g}"


def write_rollouts(source: random.Random, file: Path) -> float:
    """Write a file of rollouts with random answers. Return mean@N."""
    rollout = registry.load(None).recipe("rollout")
    options = rollout.options(model="mini", n=SAMPLES)
    rows = [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"content": f"{number} % 7?", "role": "user"}],
            "ability": "math",
            "reward_model": {"ground_truth": str(number % 7), "style": "rule"},
            "extra_info": {"index": number, "split": "test"},
        }
        for number in range(PROMPTS)
    ]

    def answer(item: Item, request: object) -> str:
        return f"I think it is {source.randrange(7)}.\n#### {source.randrange(7)}"

    results = played(rollout, rows, options, answer)
    report = finished(rollout, results, options)
    file.write_bytes(results.artifacts["rollouts.parquet"])
    mean: float = report.metrics[f"mean@{SAMPLES}"]
    return mean


class _Tokenizer:
    """Counts words: verl leaves out prompts with too many tokens."""

    def apply_chat_template(self, messages: list[dict[str, str]], **_: object) -> list[int]:
        return [1 for message in messages for _ in message["content"].split()]


def load_dataset(file: Path) -> str:
    """Load the file as verl's trainer loads prompts."""
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset

    config = OmegaConf.create({"cache_dir": str(file.parent), "filter_overlong_prompts_workers": None})
    dataset = RLHFDataset(str(file), _Tokenizer(), config)
    assert len(dataset) == PROMPTS
    row = dataset[3]
    assert row["raw_prompt"] == [{"content": "3 % 7?", "role": "user"}], row
    assert (row["reward_model"]["ground_truth"], row["index"]) == ("3", 3)
    return f"RLHFDataset: {len(dataset)} prompts, keys {', '.join(sorted(row))}"


def evaluate(file: Path, folder: Path, mean: float) -> str:
    """Run verl's evaluation of the file, which scores the responses again."""
    command = [sys.executable, "-m", "verl.trainer.main_eval", f"data.path={file}"]
    # The evaluation's own configuration lacks `reward`, which its code reads.
    command += ["+reward.custom_reward_function.path=pkg://verl.utils.reward_score"]
    command += ["+reward.custom_reward_function.name=default_compute_score", "ray_kwargs.ray_init.num_cpus=1"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=file.parent)
    match = re.search(r"'test_score/openai/gsm8k': (?:np\.float64\()?([\d.e-]+)", run.stdout)
    assert run.returncode == 0 and match, run.stdout + run.stderr
    assert abs(float(match[1]) - mean) <= 1e-12, (match[1], mean)
    return f"main_eval: test_score/openai/gsm8k = {match[1]}, mean@{SAMPLES} = {mean}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where verl and what it imports are")
    parser.add_argument("--no-evaluation", action="store_true", help="leave out main_eval, which starts Ray")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    sys.path.append(str(folder))  # after this environment's own packages
    source = random.Random(42)
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "rollouts.parquet"
        lines = [compare_rewards(source), compare_metrics(source)]
        mean = write_rollouts(source, file)
        lines.append(load_dataset(file))
        if not arguments.no_evaluation:
            lines.append(evaluate(file, folder, mean))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
