"""What authors of recipes import: programs, rewards, gates and tools.

A recipe is a generator function per item. It yields what it wants, is sent the outcomes, and returns a Result. It
depends on its item, its options and what it is sent alone, because it is run again from its beginning after a crash and
must then take the same way: no clock, no I/O, no global state, no random numbers but `Item.random`.

    @recipe("twice", Twice, stages=("draft", "final"))
    def twice(item: Item, options: Twice) -> Flow:
        \"\"\"Answer twice.\"\"\"
        (draft,) = yield [Ask("draft", item.chat(), model=options.model)]
        (final,) = yield [Ask("final", item.chat(f"Improve this: {draft.text}"), model=options.model)]
        return Result(text=final.text)
"""

from batchyard.recipes.agent import AgentRun, AgentTurn, ToolUse, agent
from batchyard.recipes.asks import CHAT, Ask, Call, Check, Flow, Peer, Score, Stage, Stages, Turn, Wait
from batchyard.recipes.blocks import Bars, Block, Histogram, Lines, Matrix, Series, Table
from batchyard.recipes.item import InvalidItem, Item, Messages, field_of, messages_of
from batchyard.recipes.judges import Gate, Reward, gate, is_wrong, reward, scored
from batchyard.recipes.kinds import (
    Child,
    CompositeRecipe,
    EndedItem,
    FlowRecipe,
    Recipe,
    Report,
    Results,
    composite,
    recipe,
)
from batchyard.recipes.options import (
    BASIC,
    BareOptions,
    ColumnName,
    CompositeOptions,
    Judgement,
    NestedOptions,
    Options,
    is_judgement,
)
from batchyard.recipes.outcomes import Answer, Called, Checked, Failure, Reply, Result, Scored, State
from batchyard.recipes.program import RecipeError, play
from batchyard.recipes.tools import Tool, tool

__all__ = [
    "BASIC",
    "CHAT",
    "AgentRun",
    "AgentTurn",
    "Answer",
    "Ask",
    "BareOptions",
    "Bars",
    "Block",
    "Call",
    "Called",
    "Check",
    "Checked",
    "Child",
    "ColumnName",
    "CompositeOptions",
    "CompositeRecipe",
    "EndedItem",
    "Failure",
    "Flow",
    "FlowRecipe",
    "Gate",
    "Histogram",
    "InvalidItem",
    "Item",
    "Judgement",
    "Lines",
    "Matrix",
    "Messages",
    "NestedOptions",
    "Options",
    "Peer",
    "Recipe",
    "RecipeError",
    "Reply",
    "Report",
    "Result",
    "Results",
    "Reward",
    "Score",
    "Scored",
    "Series",
    "Stage",
    "Stages",
    "State",
    "Table",
    "Tool",
    "ToolUse",
    "Turn",
    "Wait",
    "agent",
    "composite",
    "field_of",
    "gate",
    "is_judgement",
    "is_wrong",
    "messages_of",
    "play",
    "recipe",
    "reward",
    "scored",
    "tool",
]
