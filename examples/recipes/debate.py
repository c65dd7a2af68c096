"""A recipe of one's own: several answers compete, and a judge chooses."""

from pydantic import Field

from batchyard.recipes import Ask, Failure, Flow, Item, Options, Result, gate, recipe, reward


class Debate(Options):
    model: str
    judge: str
    n: int = Field(3, ge=2, le=9)


@recipe("debate", Debate, stages=("argue", "judge"))
def debate(item: Item, options: Debate) -> Flow:
    """Let several answers compete, and a judge choose."""
    answers = yield [Ask("argue", item.chat(), model=options.model, temperature=0.8) for _ in range(options.n)]
    texts = [answer.text for answer in answers if answer.ok]  # some failing is fine
    if not texts:
        return item.failed("no_answer")  # all failing is not
    numbered = "\n\n".join(f"[{number}] {text}" for number, text in enumerate(texts))
    question = item.chat(f"Which answer is best?\n\n{numbered}")
    choice = [str(number) for number in range(len(texts))]
    (verdict,) = yield [Ask("judge", question, model=options.judge, choice=choice)]
    if not verdict.ok:
        return item.stuck("judge_failed", candidates=texts)  # for a person
    return Result(text=texts[int(verdict.text)], votes=len(texts))


@reward("acme", data_sources=("acme/qa",), columns=("reward_model.ground_truth",))
def acme(data_source, solution_str, ground_truth, extra_info=None) -> float | dict:
    last = solution_str.strip().splitlines()[-1:] or [""]
    return {"score": float(last[0] == ground_truth), "pred": last[0]}


@gate("no-apology")
def no_apology(text, item, value) -> Failure | None:
    return Failure("style", "Do not apologise.") if "sorry" in text.lower() else None
