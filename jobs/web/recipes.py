"""/v1/recipes: the programs that jobs can run."""

from typing import Any

from flask import Blueprint

from batchyard.recipes import Recipe
from jobs.catalogue import catalogue_of
from jobs.intake.identity import judgement_fields
from webapp.document import operation
from webapp.requests import caller, current_context
from webapp.wire.jobs import GateObject, RecipeObject, RecipePage, RewardObject

routes = Blueprint("recipes", __name__)


def to_wire(recipe: Recipe[Any], sha256: str) -> RecipeObject:
    return RecipeObject(
        name=recipe.name,
        summary=recipe.summary,
        stages=recipe.default_stages(),
        options=recipe.options.model_json_schema(),
        judgement=judgement_fields(recipe.options),
        main=recipe.main,
        sha256=sha256,
    )


@routes.get("/v1/recipes")
@operation(RecipePage)
def list_() -> RecipePage:
    """List the recipes of this deployment, and the rewards and gates that their options may name."""
    caller()
    catalogue = catalogue_of(current_context())
    return RecipePage(
        data=[to_wire(recipe, catalogue.sha256(name)) for name, recipe in catalogue.recipes.items()],
        first_id=None,
        last_id=None,
        has_more=False,
        rewards=[
            RewardObject(name=reward.name, data_sources=list(reward.data_sources), columns=list(reward.columns))
            for reward in catalogue.rewards.values()
        ],
        gates=[GateObject(name=name) for name in catalogue.gates],
    )
