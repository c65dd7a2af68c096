"""The recipes, rewards, gates and tools that jobs of a deployment may name."""

from recipes import registry
from recipes.registry import Catalogue
from tasks.context import AppContext


def catalogue_of(context: AppContext) -> Catalogue:
    """Return what jobs of the deployment may name. Raises ConfigurationError."""
    return registry.catalogue(context.settings)
