"""The requests that recipe `refine` makes, by stage."""

from batchyard.recipes import Ask, Check, Messages, Score
from recipes.refine.options import ArbiterOptions, Refine, ReviewerOptions, VoteOptions


def stages(options: Refine) -> list[str]:
    names = ["answer"]
    if options.votes is not None:
        names += ["vote"] if options.votes.arbiter is None else ["vote", "arbiter"]
    return names if options.reviewer is None else [*names, "review"]


def bounds(options: Refine) -> list[tuple[float, float]]:
    """Return the requests of an item in each stage: if its first answer is accepted, and the most."""
    attempts = sum(options.budgets)
    votes = len(options.votes.models) * options.votes.n if options.votes else 0
    reviews = attempts * (2 if options.probes else 1)
    by_stage = {"answer": (1, attempts), "vote": (votes, votes * attempts), "arbiter": (0, attempts)}
    return [by_stage.get(stage, (1, reviews)) for stage in stages(options)]


def answer(options: Refine, tier: int, content: Messages | str) -> Ask:
    chosen = options.tiers[tier]
    sampling = (chosen.sampling or options.sampling).parameters()
    return Ask("answer", content, model=chosen.model, **(options.structure or {}), **sampling)


def votes(options: Refine, voters: VoteOptions, content: Messages | str) -> list[Ask]:
    sampling = (voters.sampling or options.sampling).parameters()
    return [
        Ask("vote", content, model=model, **(options.structure or {}), **sampling)
        for model in voters.models
        for _ in range(voters.n)
    ]


def arbiter(options: ArbiterOptions, content: Messages | str, candidates: int) -> Ask:
    """Return the request to choose one of some candidates."""
    choice = [str(number) for number in range(1, candidates + 1)] if options.structured else None
    return Ask("arbiter", content, model=options.model, choice=choice, temperature=0.0)


def review(options: ReviewerOptions, content: Messages | str) -> Ask:
    return Ask("review", content, model=options.model, **options.sampling.parameters())


def probe(options: Refine) -> list[Ask | Score | Check]:
    """Return all that the program may yield, for a task that stands for any."""
    asks = [answer(options, tier, "A task") for tier in range(len(options.tiers))]
    if options.votes is not None:
        asks += votes(options, options.votes, "A task")
        asks += [] if options.votes.arbiter is None else [arbiter(options.votes.arbiter, "A task", 2)]
    asks += [] if options.reviewer is None else [review(options.reviewer, "A task")]
    return [*asks, *(Check(gate.gate, "", gate.value) for gate in options.gates)]
