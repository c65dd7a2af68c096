"""Recipe `refine`: an answer passes gates, votes and a blind review, or is asked for again, on higher tiers too."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any

from batchyard.comparing.values import comparable
from batchyard.recipes import Answer, Check, Checked, Failure, Flow, Item, Messages, Peer, Reply, Result, Wait, recipe
from batchyard.wording import cut, fill
from recipes import extracts
from recipes.answers import Part, failure_of
from recipes.gates import subject
from recipes.gates.answers import external, external_name
from recipes.refine import asks
from recipes.refine import report as refine_report
from recipes.refine.options import ArbiterOptions, Refine, ReviewerOptions, VoteOptions, check, named_columns
from recipes.refine.policy import Attempt, Vote, count, decide

FIRST_INTEGER = re.compile(r"\d+")
MOST_SHOWN = 80
"""Characters of a voted answer in a message."""
LEAST_PROBES = 20
"""About how many probes a job has, if it has reviews enough."""
MOST_PROBED = 0.5
"""Share of the reviews of a small job that have a probe. Its other items complete first, so there are answers."""
STUCK = {
    "no_change": "The last answers are the same.",
    "repeat": "The last attempts of the last tier failed for one reason.",
    "failures": "The last attempt of the last tier had too many failures.",
    "budget": "The last tier has used up its attempts.",
    "friction": "The last tier made no progress.",
}
"""What is said of an item that is stuck by a rule of the policy."""


class _Stuck(Exception):
    """Only a person can go on with the item, for a reason and in words."""


@dataclass
class _Try:
    """An attempt as it goes on."""

    tier: int
    writer: str  # the model that wrote the text
    text: str | None = None  # None without an answer
    failures: list[Failure] = field(default_factory=list)
    votes: dict[str, float] | None = None  # the count of votes by answer, None without votes
    requests: int = 0
    tokens: int = 0

    def count(self, answers: Sequence[Answer]) -> None:
        self.requests += len(answers)
        self.tokens += sum(answer.input_tokens + answer.output_tokens for answer in answers)

    def record(self, category: str | None, action: str, reason: str | None) -> dict[str, Any]:
        """Return what the result keeps of the attempt, and of what followed."""
        return {
            "tier": self.tier + 1,
            "model": self.writer,
            "text": self.text,
            "category": category,
            "failures": [asdict(failure) for failure in self.failures],
            "votes": self.votes,
            "requests": self.requests,
            "tokens": self.tokens,
            "then": action,
            "reason": reason,
        }


class _Refinement:
    """The way of one item, in parts that each yield their turns."""

    def __init__(self, item: Item, options: Refine) -> None:
        self._item = item
        self._options = options
        self._task = [message for message in item.messages if message["role"] != "system"]
        self._history: list[dict[str, Any]] = []
        self._attempts: list[Attempt] = []
        self._counters = Counter[str]()

    def run(self) -> Flow:
        """Try on one tier after another, until an answer is accepted or a rule gives the item up."""
        tier = 0
        content = self._item.chat()
        while True:
            attempt = _Try(tier, self._options.tiers[tier].model)
            self._counters["attempts"] += 1
            try:
                yield from self._attempt(attempt, content)
            except _Stuck as stuck:
                reason, message = stuck.args
                self._history.append(attempt.record(reason, "stuck", reason))
                return self._stuck(reason, message)
            if not attempt.failures:
                self._history.append(attempt.record(None, "accepted", None))
                accepted = {"tier": tier + 1, "model": attempt.writer, "votes": attempt.votes}
                return Result(attempt.text, self._counters, **accepted, **self._kept())
            category = attempt.failures[0].category
            digest = None if attempt.text is None else blake2b(attempt.text.encode(), digest_size=16).hexdigest()
            self._attempts.append(Attempt(tier, category, len(attempt.failures), digest))
            decision = decide(self._attempts, self._options.policy, self._options.budgets)
            self._history.append(attempt.record(category, decision.action, decision.reason))
            if decision.action == "stuck":
                return self._stuck(str(decision.reason), STUCK[str(decision.reason)])
            if decision.action == "escalate":
                tier += 1
                self._counters["escalations"] += 1
            content = self._item.chat()
            if attempt.text is not None and self._options.feedback:
                feedback = "\n".join(f"- {failure.category}: {failure.message}" for failure in attempt.failures)
                prompts = self._options.prompts
                template = prompts.escalate if decision.action == "escalate" else prompts.retry
                content = self._item.chat(fill(template, {"feedback": feedback, "answer": attempt.text}))

    def _attempt(self, attempt: _Try, content: Messages) -> Part[None]:
        """Ask for an answer and look at it. Its text and its failures are left in the attempt."""
        (answer,) = yield [asks.answer(self._options, attempt.tier, content)]
        attempt.count([answer])
        if failure := failure_of(answer):
            attempt.failures.append(failure)
            return
        attempt.text = answer.text
        attempt.failures = yield from self._gates(answer)
        if self._options.votes is not None and not attempt.failures:
            yield from self._vote(attempt, answer, self._options.votes)
        if self._options.reviewer is not None and not attempt.failures:
            yield from self._review(attempt, self._options.reviewer)

    def _gates(self, answer: Answer) -> Part[list[Failure]]:
        """Return the failures of an answer: all of them, or in mode fail_fast the first one.

        A verdict is waited for last, and only if nothing has failed before it.
        """
        waits = [gate for gate in self._options.gates if gate.gate == external.name]
        gates = [gate for gate in self._options.gates if gate.gate != external.name]
        at_once = len(gates) if self._options.mode == "comprehensive" else 1
        for start in range(0, len(gates), at_once or 1):
            group = gates[start : start + at_once]
            checked: list[Checked] = yield [Check(gate.gate, subject(gate.gate, answer), gate.value) for gate in group]
            failures = [
                Failure(gate.category or outcome.category or gate.gate, outcome.message or "")
                for gate, outcome in zip(group, checked, strict=True)
                if not outcome.passed
            ]
            if failures:
                return failures
        for gate in waits:
            name = external_name(gate.value)
            reply: Reply = yield Wait("verdict", gate=name, text=answer.text)
            if not reply.passed:
                message = reply.message or f"{reply.by or name} says that the answer does not pass."
                return [Failure(gate.category or reply.category or name, message)]
        return []

    def _vote(self, attempt: _Try, answer: Answer, votes: VoteOptions) -> Part[None]:
        """Count the answer's and the voters' votes. Another text that wins has to pass the gates."""
        answers: list[Answer] = yield asks.votes(self._options, votes, self._item.chat())
        attempt.count(answers)
        voters = [attempt.writer, *(model for model in votes.models for _ in range(votes.n))]
        ballots = []
        for voter, voted in zip(voters, [answer, *answers], strict=True):
            extract = None if failure_of(voted) else extracts.extract(votes.extract, voted.text)
            ballots.append((Vote(extract, votes.weights.get(voter, 1.0)), voter, voted))
        counted = count([vote for vote, _, _ in ballots], votes.strategy)
        attempt.votes = counted.tally
        if not counted.agreed:
            shown = ", ".join(f"{cut(text, MOST_SHOWN)!r} {number:g}" for text, number in counted.tally.items())
            attempt.failures.append(Failure("no_agreement", f"The models do not agree: {shown or 'no votes'}."))
            return
        first = {vote.answer: (voter, voted) for vote, voter, voted in reversed(ballots)}
        winner = counted.leading[0]
        if len(counted.leading) > 1:
            texts = [first[leading][1].text for leading in counted.leading]
            winner = counted.leading[(yield from self._arbitrate(attempt, votes.arbiter, texts))]
        attempt.writer, chosen = first[winner]
        if chosen is not answer:
            attempt.text = chosen.text
            attempt.failures = yield from self._gates(chosen)

    def _arbitrate(self, attempt: _Try, arbiter: ArbiterOptions | None, texts: Sequence[str]) -> Part[int]:
        """Return the index of the text that the arbiter chooses. Raises _Stuck without one."""
        self._counters["ties"] += 1
        message = f"{len(texts)} answers have as many votes."
        if arbiter is None:
            raise _Stuck("tie", message)
        candidates = "\n\n".join(f"[{number}] {text}" for number, text in enumerate(texts, 1))
        content = self._blind(fill(arbiter.prompt, {"candidates": candidates}))
        (answer,) = yield [asks.arbiter(arbiter, content, len(texts))]
        attempt.count([answer])
        number = FIRST_INTEGER.search(answer.text) if answer.ok else None
        choice = int(number[0][:9]) if number else 0
        if not 1 <= choice <= len(texts):
            raise _Stuck("tie", f"{message} The arbiter has chosen none.")
        return choice - 1

    def _review(self, attempt: _Try, reviewer: ReviewerOptions) -> Part[None]:
        """Let the reviewer see the task and the answer, and nothing else."""
        text = str(attempt.text)
        review = yield from self._reviewed(attempt, reviewer, text)
        if not review.ok:
            error = review.error or {}
            raise _Stuck("review_failed", f"There is no review: {error.get('message') or error.get('code')}")
        first, rest = _first_line(review), review.text.partition("\n")[2]
        if first not in ("PASS", "FAIL"):
            self._counters["review_unreadable"] += 1
            attempt.failures.append(Failure("review", "The review begins with neither PASS nor FAIL."))
        elif first == "FAIL":
            remark = rest.strip() or "The reviewer says that the answer is wrong."
            attempt.failures.append(Failure("review", remark))
        yield from self._try_reviewer(attempt, reviewer, text)
        self._counters["reviews"] += 1

    def _try_reviewer(self, attempt: _Try, reviewer: ReviewerOptions, text: str) -> Part[None]:
        """After some of the reviews, put another item's answer before the reviewer, if there is one that differs.

        Not together with that of the item's answer: where all items are reviewed at once, none has been accepted yet.
        """
        options = self._options
        share = max(options.probes, min(MOST_PROBED, LEAST_PROBES / self._item.total)) if options.probes else 0.0
        if self._item.random("probe", self._counters["reviews"]).random() >= share:
            return
        peer: str | None = yield Peer()
        if peer is None or self._comparable(peer) == self._comparable(text):
            return
        review = yield from self._reviewed(attempt, reviewer, peer)
        if review.ok:
            self._counters["probes"] += 1
            self._counters["probes_caught"] += _first_line(review) != "PASS"

    def _reviewed(self, attempt: _Try, reviewer: ReviewerOptions, text: str) -> Part[Answer]:
        review: Answer
        (review,) = yield [asks.review(reviewer, self._blind(fill(reviewer.prompt, {"answer": text})))]
        attempt.count([review])
        return review

    def _comparable(self, text: str) -> str:
        votes = self._options.votes
        return (extracts.extract(votes.extract, text) if votes else None) or comparable(text)

    def _blind(self, text: str) -> Messages:
        """Return the task without the writer's system messages, and a text."""
        return [*self._task, {"role": "user", "content": text}]

    def _stuck(self, reason: str, message: str) -> Result:
        """End the item for a person; without any answer it has failed."""
        if all(attempt["text"] is None for attempt in self._history):
            error = self._history[-1]["failures"][0]["message"]
            return self._item.failed("no_answer", error, counters=self._counters, **self._kept())
        return self._item.stuck(reason, message, counters=self._counters, **self._kept())

    def _kept(self) -> dict[str, Any]:
        return {"history": self._history, **{name: self._counters[name] for name in refine_report.REVIEWS}}


def _first_line(review: Answer) -> str:
    return review.text.partition("\n")[0]


@recipe(
    "refine",
    Refine,
    asks.stages,
    loops=True,
    probe=asks.probe,
    bounds=asks.bounds,
    check=check,
    columns=named_columns,
    finish=refine_report.report,
    main="done.jsonl",
)
def refine(item: Item, options: Refine) -> Flow:
    """Check, review and retry answers until they are accepted."""
    return (yield from _Refinement(item, options).run())
