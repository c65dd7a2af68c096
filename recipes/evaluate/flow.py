"""Recipe `evaluate`: answers to questions whose right answers are known, scored by metrics that people know."""

from __future__ import annotations

from typing import Any

from batchyard.recipes import Answer, Ask, Check, Flow, Item, Recipe, Result, Score, Stage, is_wrong, recipe
from recipes.answers import unanswered
from recipes.evaluate import checks, judging, likelihood, questions, report, scoring
from recipes.evaluate.options import ASSERTS, JUDGE, Evaluate, EvaluationJudge
from recipes.evaluate.scoring import ScoredAnswer
from recipes.rewards.catalogue import RewardCatalogue, RewardedRecipe

STAGE = "answer"


def _ask(options: Evaluate, content: Any, seed: int | None = None) -> Ask:
    return Ask(STAGE, content, model=options.model, seed=seed, **options.sampling.model_dump(exclude_none=True))


def _stages(options: Evaluate) -> list[str | Stage]:
    if options.choices is not None:
        return [likelihood.STAGE]
    asks_a_model = options.judge is not None or any(metric.grader for metric in options.metrics)
    return [STAGE, *([judging.STAGE] if asks_a_model else [])]


def _probe(options: Evaluate, rewards: RewardCatalogue) -> list[Ask | Score | Check]:
    if options.choices is not None:
        return list(likelihood.asks(options.model, "1 + 1 =", [" 2"]))
    examples: list[Ask | Score | Check] = [_ask(options, "1 + 1 =")]
    for metric in options.metrics:
        if metric.grader is not None:
            examples.append(scoring.grade(metric.grader, [each.model_dump() for each in metric.grader.input]))
        elif scoring.kind_of(metric, rewards) == "gate":
            examples.append(Check(metric.metric, "", metric.value))
    if options.judge is not None:
        examples += _probe_of(options.judge)
    return examples


def _probe_of(judge: EvaluationJudge) -> list[Ask]:
    probe = judge.model_copy(update={"rubric": None})
    other = None if judge.against is None else "3"
    asker = judging.Judge(probe, Item(0, "", {}), [{"role": "user", "content": "1 + 1 ="}], "answer")
    return asker.asks(judging.JudgedTexts("2", other))


def _sample(options: Evaluate, answer: Answer, scored: ScoredAnswer | None) -> dict[str, Any]:
    """Return what the result keeps of an answer. `score` and `acc` are those of the first metric."""
    kept: dict[str, Any] = {
        "text": answer.text if scored is not None else None,
        "score": 0.0,
        "finish_reason": answer.finish_reason,
        "seed": answer.seed,
        "output_tokens": answer.output_tokens,
        "error": unanswered(answer),
    }
    if scored is not None:
        first = options.labels[0]
        score = scored.scores.get(first)
        acc = scored.accs.get(first)
        kept |= {"score": score, "acc": acc, "pred": scored.pred, "scores": scored.scores, "values": scored.values}
        kept |= {"metric_errors": scored.errors} if scored.errors else {}
    extra = {name: answer.extra[name] for name in ("reasoning",) if name in answer.extra}
    return {**kept, **extra}


def _evaluated(item: Item, options: Evaluate, rewards: RewardCatalogue) -> Flow:
    content = questions.content_of(item, options)
    judge = None if options.judge is None else judging.Judge(options.judge, item, item.messages, options.ground_truth)
    seeded = options.seeds == "derived" and options.sampling.temperature > 0
    answers: list[Answer] = yield [
        _ask(options, content, item.seed(STAGE, number) if seeded else None) for number in range(options.repeats)
    ]
    by_answer = [ScoredAnswer(answer) if unanswered(answer) is None else None for answer in answers]
    scored = [each for each in by_answer if each is not None]
    agreement: dict[str, float] = {}
    if scored:
        yield from scoring.score(item, options, rewards, scored)
    if judge is not None:
        yield from scoring.judge(judge, scored, agreement)
    samples = [_sample(options, answer, each) for answer, each in zip(answers, by_answer, strict=True)]
    counters = {
        "samples": len(samples),
        "unanswered": len(samples) - len(scored),
        "wrong": sum(map(is_wrong, samples)),
        "metric_errors": sum(len(each.errors) for each in scored),
    }
    values: dict[str, Any] = {"question": questions.question_of(item), "samples": samples}
    values |= {"agreement": agreement} if agreement else {}
    # Each mean at the top of the result is what an experiment compares. An answer that is missing counts 0.
    values |= {
        label: sum(each.scores.get(label, 0.0) for each in scored) / len(samples)
        for label in _applying(item, options, judge)
    }
    if not scored:
        error = samples[0]["error"] or {}
        lost = item.failed("no_answer", error.get("message"), **values)
        lost.counters |= counters
        return lost
    return Result(scored[0].answer.text, counters, **values)


def _applying(item: Item, options: Evaluate, judge: judging.Judge | None) -> list[str]:
    """Return the metrics that a row has: not all have gates of their own, or what the judge needs."""
    labels = [metric.label for metric in options.metrics]
    if options.asserts and scoring.asserts_of(item.columns, options.asserts):
        labels.append(ASSERTS)
    if judge is not None and judge.judged("") is not None:
        labels.append(JUDGE)
    return labels


def recipe_of(rewards: RewardCatalogue) -> Recipe[Evaluate]:
    """Return the recipe for a deployment with these rewards and gates."""

    @recipe(
        "evaluate",
        Evaluate,
        stages=_stages,
        probe=lambda options: _probe(options, rewards),
        check=lambda options: checks.check(options, rewards),
        columns=lambda options, row: checks.needed_columns(options, row, rewards),
        finish=report.write,
        main=report.ANSWERS,
        expected=lambda options: [] if options.choices else [float(options.repeats)],
    )
    def evaluated(item: Item, options: Evaluate) -> Flow:
        """Ask questions whose right answers are known, and score what is answered."""
        if options.choices is not None:
            return (yield from likelihood.most_likely(item, options, questions.content_of(item, options)))
        return (yield from _evaluated(item, options, rewards))

    return evaluated


evaluate = RewardedRecipe("evaluate", recipe_of)
