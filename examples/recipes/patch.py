"""A recipe whose answers a CI judges."""

from batchyard.recipes import Ask, Flow, Item, Options, Result, Wait, recipe


class Patch(Options):
    model: str


@recipe("patch", Patch, stages=("write",), loops=True)
def patch(item: Item, options: Patch) -> Flow:
    """Write a patch, and mend it until the CI passes it, three times at most."""
    (answer,) = yield [Ask("write", item.chat(), model=options.model)]
    for _ in range(3):
        if not answer.ok:
            return item.failed("no_answer")
        verdict = yield Wait("verdict", gate="ci", patch=answer.text)
        if verdict.passed:
            return Result(text=answer.text, tested_by=verdict.by)
        mend = f"This patch fails:\n{answer.text}\n\n{verdict.message}"
        (answer,) = yield [Ask("write", item.chat(mend), model=options.model)]
    return item.stuck("ci_fails", patch=answer.text)
