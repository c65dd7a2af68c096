"""Recipe `evaluate`: answers to questions whose right answers are known, scored by metrics that people know."""

from typing import Any

from batchyard.recipes import Answer, Ask, Check, Flow, Item, Recipe, Result, Score, Stage, is_wrong, recipe
from recipes.answers import unanswered
from recipes.evaluate import checks, judging, likelihood, questions, report, scoring
from recipes.evaluate.options import ASSERTS, JUDGE, Evaluate
from recipes.evaluate.scoring import ScoredAnswer
from recipes.registry import Catalogue, RewardedRecipe

STAGE = "answer"


def _ask(options: Evaluate, content: Any, seed: int | None = None) -> Ask:
    return Ask(STAGE, content, model=options.model, seed=seed, **options.sampling.parameters())


def _stages(options: Evaluate) -> list[str | Stage]:
    if options.choices is not None:
        return [likelihood.STAGE]
    asks_a_model = options.judge is not None or any(metric.grader for metric in options.metrics)
    return [STAGE, *([judging.STAGE] if asks_a_model else [])]


def _probe(options: Evaluate, rewards: Catalogue) -> list[Ask | Score | Check]:
    if options.choices is not None:
        return list(likelihood.asks(options.model, "1 + 1 =", [" 2"]))
    examples: list[Ask | Score | Check] = [_ask(options, "1 + 1 =")]
    for metric in options.metrics:
        if metric.grader is not None:
            examples.append(metric.grader.ask(judging.STAGE))
        elif scoring.kind_of(metric, rewards) == "gate":
            examples.append(Check(metric.metric, "", metric.value))
    if options.judge is not None:
        probe = options.judge.model_copy(update={"rubric": None})
        item = Item(0, "", {} if probe.against is None else {probe.against: "3"})
        examples += judging.Judge(probe, item, [{"role": "user", "content": "1 + 1 ="}], "answer").asks("2")
    return examples


def _sample(options: Evaluate, answer: Answer, scored: ScoredAnswer | None) -> dict[str, Any]:
    """Return what the result keeps of an answer. `score` and `acc` are those of the first metric."""
    kept: dict[str, Any] = {
        "text": answer.text if scored is not None else None,
        "score": 0.0,
        **{name: getattr(answer, name) for name in ("finish_reason", "seed", "output_tokens")},
        "error": unanswered(answer),
    }
    if scored is not None:
        score, acc = (by_label.get(options.labels[0]) for by_label in (scored.scores, scored.accs))
        kept |= {"score": score, "acc": acc, "pred": scored.pred, "scores": scored.scores, "values": scored.values}
        kept |= {"metric_errors": scored.errors} if scored.errors else {}
    return kept | ({"reasoning": answer.extra["reasoning"]} if "reasoning" in answer.extra else {})


def _evaluated(item: Item, options: Evaluate, rewards: Catalogue) -> Flow:
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
    # Not all rows have gates of their own, or what the judge needs.
    labels = [metric.label for metric in options.metrics]
    labels += [ASSERTS] if options.asserts and scoring.asserts_of(item.columns, options.asserts) else []
    labels += [JUDGE] if judge is not None and judge.asks("") else []
    # Each mean at the top of the result is what an experiment compares. An answer that is missing counts 0.
    values |= {label: sum(each.scores.get(label, 0.0) for each in scored) / len(samples) for label in labels}
    if not scored:
        return item.failed("no_answer", (samples[0]["error"] or {}).get("message"), counters=counters, **values)
    return Result(scored[0].answer.text, counters, **values)


def recipe_of(rewards: Catalogue) -> Recipe[Evaluate]:
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
        """Score a model on questions with known answers."""
        if options.choices is not None:
            return (yield from likelihood.most_likely(item, options, questions.content_of(item, options)))
        return (yield from _evaluated(item, options, rewards))

    return evaluated


evaluate = RewardedRecipe("evaluate", recipe_of)
