"""Recipe `rollout`: n samples of each prompt, scored by a reward. What it leaves behind is in `report`."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from batchyard.recipes import Answer, Ask, Check, Flow, InvalidItem, Item, Recipe, Result, Score, Scored, recipe
from recipes import extracts
from recipes.answers import Part, unanswered
from recipes.options import check_extract, check_reward
from recipes.registry import Catalogue, RewardedRecipe
from recipes.rewards import graders
from recipes.rollout import report as rollout_report
from recipes.rollout.options import GROUND_TRUTH, RewardOptions, Rollout, data_source_of, ground_truth_of

STAGE = "sample"
GRADE = "grade"
"""The stage of a grader that asks a model."""


def reward_of(columns: Mapping[str, Any], options: RewardOptions, rewards: Catalogue) -> str | None:
    """Return the name of a row's reward, or a grader's JSON; None for an unknown source."""
    if isinstance(options.reward, str):
        return options.reward
    if options.grader is not None:
        return options.grader
    data_source = data_source_of(columns)
    if isinstance(options.reward, dict) and data_source in options.reward:
        return str(options.reward[data_source])
    reward = rewards.reward_for(data_source)
    return None if reward is None else reward.name


def check_rewards(options: RewardOptions, rewards: Catalogue) -> None:
    """Raise ValueError, with the path of the option, for a reward or an extract that cannot be."""
    named: list[tuple[str, Any]] = [] if options.reward is None else [("reward", options.grader or options.reward)]
    if isinstance(options.reward, dict) and options.grader is None:
        named = [(f"reward.{source}", name) for source, name in options.reward.items()]
    for path, name in named:
        if not isinstance(name, str):
            raise ValueError(f"{path}: a data source has the name of its reward, not {json.dumps(name)}")
        check_reward(path, name, rewards)
    check_extract("extract", options.extract)


def columns_of(options: Rollout, row: Mapping[str, Any], rewards: Catalogue) -> Sequence[str]:
    """Return the columns that a row's reward needs."""
    check_columns(row, rollout_report.COLUMNS)
    name = reward_of(row, options, rewards)
    if name is None:
        raise InvalidItem(
            "no_reward",
            f"Data source {data_source_of(row)!r} has no reward; name one in the option `reward`. "
            f"Available: {', '.join(rewards.rewards)}.",
        )
    return columns_of_reward(options, name, rewards)


def check_columns(row: Mapping[str, Any], own: Sequence[str]) -> None:
    """Raise InvalidItem if a column has the name of one of the results."""
    if taken := [name for name in own if name in row]:
        raise InvalidItem("column_taken", f"The results have a column {taken[0]!r} of their own; rename the input's.")


def columns_of_reward(options: RewardOptions, name: str, rewards: Catalogue) -> Sequence[str]:
    needed = rewards.reward(name).columns
    return [options.ground_truth if path == GROUND_TRUTH and options.ground_truth else path for path in needed]


def _ask(options: Rollout, content: Any, seed: int | None) -> Ask:
    tokens: dict[str, Any] = {"logprobs": options.logprobs or None, "return_token_ids": options.response_ids or None}
    return Ask(STAGE, content, model=options.model, seed=seed, **tokens, **options.sampling.parameters())


def scored(
    item: Item, options: RewardOptions, reward: str, texts: Sequence[str], seen: Mapping[str, Any] | None = None
) -> Part[list[Scored]]:
    """Score answers: by a grader's model, or by a reward, for which `seen` is part of `extra_info`."""
    texts = [extracts.part(options.extract, text) for text in texts]
    if (grader := graders.of_model(reward)) is not None:
        contents = [grader.messages(item.columns, text) for text in texts]
        asks = [grader.ask(GRADE, content) for content in contents if content is not None]
        grades = iter((yield asks) if asks else [])
        return [Scored(0.0) if content is None else grader.scored(next(grades)) for content in contents]
    extra = dict(item.columns) if options.grader is not None else item.columns.get("extra_info")
    if seen is not None and options.grader is None:
        extra = {**(extra or {}), **seen}
    source, truth = data_source_of(item.columns), ground_truth_of(item.columns, options)
    scores: list[Scored] = yield [Score(reward, source, text, truth, extra) for text in texts]
    return scores


def _sample(options: Rollout, answer: Answer, scored: Scored | None) -> dict[str, Any]:
    """Return what the result keeps of a sample."""
    extra = {name: answer.extra[name] for name in ("reasoning", "tool_calls") if name in answer.extra}
    if scored is None:
        ending = {"finish_reason": answer.finish_reason, "output_tokens": answer.output_tokens}
        return {"text": None, "seed": answer.seed, "error": unanswered(answer), **ending, **extra}
    pred = scored.pred
    if pred is None and options.extract is not None and scored.error is None:
        pred = extracts.extract(options.extract, answer.text)
    sample: dict[str, Any] = {
        "text": answer.text,
        "score": scored.score,
        "acc": scored.acc,
        "pred": pred,
        "values": {
            name: float(value)
            for name, value in scored.values.items()
            if name not in ("score", "pred") and isinstance(value, int | float)
        },
        **{name: getattr(answer, name) for name in ("finish_reason", "seed", "output_tokens")},
        "error": None if scored.error is None else {"code": "reward_error", "message": scored.error},
        **extra,
    }
    if options.logprobs:
        tokens = (answer.extra.get("logprobs") or {}).get("content") or []
        sample["logprobs"] = [token["logprob"] for token in tokens]
    if options.response_ids:
        sample["response_ids"] = list(answer.extra.get("token_ids") or [])
    return sample


def _stages(options: Rollout) -> list[str]:
    return [STAGE] if graders.of_model(options.grader) is None else [STAGE, GRADE]


def _probe(options: Rollout) -> list[Ask | Score | Check]:
    grader = graders.of_model(options.grader)
    return [_ask(options, "1 + 1 =", None), *([] if grader is None else [grader.ask(GRADE)])]


def _sampled(item: Item, options: Rollout, reward: str | None) -> Flow:
    """Sample a prompt and score the answers by this reward, or by a grader of this JSON."""
    if reward is None:
        return item.failed("no_reward", f"data source {data_source_of(item.columns)!r} has no reward")
    seeded = options.seeds == "derived" and options.sampling.temperature > 0
    wave = options.n if options.threshold is None else options.wave
    content = item.chat()
    samples: list[dict[str, Any]] = []
    best: tuple[float, str | None] = (float("-inf"), None)
    while len(samples) < options.n and (options.threshold is None or best[0] < options.threshold):
        numbers = range(len(samples), min(len(samples) + wave, options.n))
        answers: list[Answer] = yield [
            _ask(options, content, item.seed(STAGE, number) if seeded else None) for number in numbers
        ]
        texts = [answer.text for answer in answers if unanswered(answer) is None]
        scores = iter((yield from scored(item, options, reward, texts)) if texts else ())
        for answer in answers:
            score = next(scores) if unanswered(answer) is None else None
            samples.append(_sample(options, answer, score))
            if score is not None and score.score > best[0]:
                best = score.score, answer.text
    counters = {
        "samples": len(samples),
        "unanswered": sum(sample["text"] is None for sample in samples),
        "reward_errors": sum((sample["error"] or {}).get("code") == "reward_error" for sample in samples),
    }
    if counters["unanswered"] == len(samples):
        message = (samples[0]["error"] or {}).get("message")
        return item.failed("no_answer", message, counters=counters, samples=samples)
    return Result(best[1], counters, samples=samples)


def recipe_of(rewards: Catalogue) -> Recipe[Rollout]:
    """Return the recipe for a deployment with these rewards."""

    def checked(options: Rollout) -> None:
        if options.n > 1 and options.sampling.temperature == 0:
            reason = "at 0 all samples of a prompt are the same; ask for n = 1, or raise it"
            raise ValueError(f"sampling.temperature: {reason}")
        check_rewards(options, rewards)

    @recipe(
        "rollout",
        Rollout,
        stages=_stages,
        loops=True,
        probe=_probe,
        check=checked,
        columns=lambda options, row: columns_of(options, row, rewards),
        finish=rollout_report.write,
        main="rollouts.parquet",
        expected=lambda options: [float(options.n)] * len(_stages(options)),
    )
    def sampled(item: Item, options: Rollout) -> Flow:
        """Sample each prompt n times and score the answers.

        With a threshold it samples in waves, until a score reaches it.
        """
        return (yield from _sampled(item, options, reward_of(item.columns, options, rewards)))

    return sampled


rollout = RewardedRecipe("rollout", recipe_of)
