"""Derived models: `mini~1f0c9b2e` is the served model `mini` with other values, which a job of recipe `tune` measures.

They stand in the records of the jobs that run on them, and are known as long as these have not ended. No client can
name one: what checks requests and options knows the served models only.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from batchyard.models import ModelSpec
from inference import catalog
from inference.engines import registry
from recipes.tune.cells import Cell, TunedModel
from tasks.context import AppContext

WEIGHTS = ("*.safetensors", "*.bin", "*.pt")
"""Files with weights in a model's folder; the first kind that is there counts."""


def bases(models: Mapping[str, Mapping[str, Any]], names: Iterable[str]) -> list[TunedModel]:
    """Return the models of these names, as cells are derived from them. `models`: their configurations."""
    tuned = []
    for name in names:
        spec = ModelSpec.model_validate(models[name])
        entry = spec.model_dump(mode="json", exclude_defaults=True, exclude={"name"})
        engine = registry.capabilities(spec.engine)
        field = engine.arguments.model_fields.get(engine.batch_argument or "") if engine.arguments else None
        default, size = None if field is None else field.default, _bytes(Path(spec.source))
        tuned.append(TunedModel(name, entry, batch_argument=engine.batch_argument, batch_default=default, size=size))
    return tuned


def _bytes(folder: Path) -> int | None:
    """Return the bytes of a model's weights, None if they are not in a local folder."""
    if not folder.is_absolute():
        return None
    sizes = (sum(file.stat().st_size for file in folder.glob(pattern)) for pattern in WEIGHTS)
    return next((size for size in sizes if size), None)


def spec_of(cell: Cell, base: TunedModel) -> ModelSpec:
    return catalog.derived(base.name, cell.entry(base))


def context_with(context: AppContext, spec: ModelSpec) -> AppContext:
    """Return a context in which a job on this model can be checked."""
    return replace(context, models={**context.models, spec.name: spec})
