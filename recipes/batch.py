"""Recipe `batch`: each row is one request, all of them one flat batch."""

from pydantic import ConfigDict, Field

from batchyard.recipes import Ask, Flow, Item, Options, Result, recipe
from recipes.answers import lost
from recipes.options import SamplingOption

STAGE = "answer"


class FlatBatchOptions(Options):
    """Options of `batch`."""

    model_config = ConfigDict(title="Batch")

    model: str = Field(description="Model that answers")
    sampling: SamplingOption
    fresh: bool = Field(False, description="Compute each answer: none comes from the cache or from an equal request")

    @property
    def shares_answers(self) -> bool:
        """False if an equal request's answer may not be taken."""
        return not self.fresh


def _ask(options: FlatBatchOptions, content: object) -> Ask:
    return Ask(STAGE, content, model=options.model, **options.sampling.parameters())


@recipe(
    "batch",
    FlatBatchOptions,
    stages=(STAGE,),
    probe=lambda options: [_ask(options, "1 + 1 =")],
    expected=lambda _: [1.0],
)
def batch(item: Item, options: FlatBatchOptions) -> Flow:
    """Answer each row once, as one batch."""
    (answer,) = yield [_ask(options, item.chat())]
    measured = {name: getattr(answer, name) for name in ("seconds", "input_tokens", "output_tokens")}
    if not answer.ok:
        return lost(item, answer, **measured)
    return Result(answer.text, finish_reason=answer.finish_reason, **measured)
