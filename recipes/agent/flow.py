"""Recipe `agent`: a model works on each row with tools. What it leaves behind is in `report`."""

from collections.abc import Mapping, Sequence
from typing import Any

from batchyard.recipes import AgentRun, AgentTurn, Flow, Item, Recipe, Result, Stage, Tool, recipe
from batchyard.recipes import agent as run_agent
from batchyard.wording import hint
from recipes.agent import report
from recipes.agent.options import AgentLoop
from recipes.agent.tokens import logprobs_of, tokens_of
from recipes.answers import lost
from recipes.registry import Catalogue, RewardedRecipe
from recipes.rewards import graders
from recipes.rollout import flow as rollout

TURN = "turn"


def check(options: AgentLoop, catalogue: Catalogue) -> None:
    rollout.check_rewards(options, catalogue)
    if options.stop_tool is not None and options.stop_tool not in options.tools:
        raise ValueError(f"stop_tool: it is none of the tools{hint(options.stop_tool, options.tools)}")
    if options.tool_choice is not None and not options.tools:
        raise ValueError("tool_choice: there are no tools to choose from; name some in `tools`")
    if options.endpoint == "responses":
        for name in ("logprobs", "response_ids"):
            if getattr(options, name):
                raise ValueError(f"{name}: Responses have none; take `endpoint: chat`")


def columns_of(options: AgentLoop, row: Mapping[str, Any], catalogue: Catalogue) -> Sequence[str]:
    """Return the columns that a row's reward needs. Raises InvalidItem if one has the name of a result."""
    rollout.check_columns(row, report.COLUMNS)
    reward = rollout.reward_of(row, options, catalogue)
    return [] if reward is None else rollout.columns_of_reward(options, reward, catalogue)


def _probe(options: AgentLoop, catalogue: Catalogue) -> list[Any]:
    flow = _run(options, [{"role": "user", "content": "1 + 1 ="}], catalogue)
    grader = graders.of_model(options.grader)
    return [*next(flow), *([] if grader is None else [grader.ask(rollout.GRADE)])]


def _tools(options: AgentLoop, catalogue: Catalogue) -> list[Tool]:
    return [catalogue.tools[name] for name in options.tools]


def _run(options: AgentLoop, messages: list[dict[str, Any]], catalogue: Catalogue) -> Any:
    limits = {name: getattr(options, name) for name in ("model", "max_turns", "max_tokens", "budget", "stop_tool")}
    tools, parameters = _tools(options, catalogue), options.parameters()
    return run_agent(messages, stage=TURN, tools=tools, endpoint=options.path, **limits, **parameters)


def _worked(item: Item, options: AgentLoop, catalogue: Catalogue) -> Flow:
    run: AgentRun = yield from _run(options, item.chat(), catalogue)
    last = run.turns[-1]
    result = next((use.called.text for use in last.uses if use.name == options.stop_tool and use.called.ok), run.text)
    uses = [use for turn in run.turns for use in turn.uses]
    tokens = tokens_of(turn.answer for turn in run.turns)
    turns = [_turn(turn, options, each) for turn, each in zip(run.turns, tokens, strict=True)]
    values: dict[str, Any] = {"stop": run.stop, "turns": turns}
    counters = {
        "turns": len(run.turns),
        "tool_calls": len(uses),
        "tool_errors": sum(not use.called.ok for use in uses),
        "interrupted": sum((use.called.error or {}).get("code") == "interrupted" for use in uses),
    }
    if run.stop == "no_answer":
        return lost(item, last.answer, counters=counters, **values)
    reward = rollout.reward_of(item.columns, options, catalogue)
    if reward is not None:
        seen = {"num_turns": len(run.turns), "messages": run.history, "stop": run.stop}
        (score,) = yield from rollout.scored(item, options, reward, [result or ""], seen)
        values |= {"score": score.score, "acc": score.acc, "pred": score.pred, "reward_error": score.error}
        counters["reward_errors"] = int(score.error is not None)
    return Result(result, counters, **values)


def _turn(turn: AgentTurn, options: AgentLoop, tokens: dict[str, Any] | None) -> dict[str, Any]:
    """Return what the result keeps of a turn: nothing that another run of the same requests has otherwise."""
    answer = turn.answer
    values: dict[str, Any] = {
        "text": answer.text if answer.ok else None,
        "tool_calls": [
            {"id": use.id, "name": use.name, "arguments": use.arguments, "result": use.called.text, "error": code}
            for use in turn.uses
            for code in [None if use.called.ok else (use.called.error or {}).get("code")]
        ],
        **{name: getattr(answer, name) for name in ("finish_reason", "input_tokens", "output_tokens", "seed")},
    }
    if not answer.ok:
        values["error"] = answer.error
    if "reasoning" in answer.extra:
        values["reasoning"] = answer.extra["reasoning"]
    if options.response_ids:
        values["tokens"] = tokens
    elif options.logprobs:
        values["logprobs"] = logprobs_of(answer)
    return values


def recipe_of(catalogue: Catalogue) -> Recipe[AgentLoop]:
    """Return the recipe for a deployment with these tools and rewards."""

    def stages(options: AgentLoop) -> list[Stage]:
        graded = graders.of_model(options.grader) is not None
        return [Stage(TURN, options.path), *([Stage(rollout.GRADE)] if graded else [])]

    def bounds(options: AgentLoop) -> list[tuple[float, float]]:
        return [(1.0, float(options.max_turns)), *([(1.0, 1.0)] if len(stages(options)) > 1 else [])]

    @recipe(
        "agent",
        AgentLoop,
        stages=stages,
        loops=True,
        probe=lambda options: _probe(options, catalogue),
        check=lambda options: check(options, catalogue),
        columns=lambda options, row: columns_of(options, row, catalogue),
        finish=lambda results, options: report.write(results, options, _tools(options, catalogue)),
        main="trajectories.parquet",
        bounds=bounds,
    )
    def worked(item: Item, options: AgentLoop) -> Flow:
        """Run a tool-using agent on each row, and score its result."""
        return (yield from _worked(item, options, catalogue))

    return worked


agent = RewardedRecipe("agent", recipe_of)
