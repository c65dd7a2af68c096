"""Ray Data's private and undocumented API, for what runs datasets: the processes of engines do not load Ray Data."""

import threading
import time
from collections.abc import Generator, Mapping
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import ray
from ray.data import DataContext, Dataset
from ray.data._internal.cluster_autoscaler import ClusterAutoscaler, create_cluster_autoscaler
from ray.data._internal.execution import streaming_executor
from ray.data._internal.execution.execution_callback import ExecutionCallback
from ray.data._internal.execution.interfaces import ExecutionResources
from ray.data._internal.remote_fn import CACHED_FUNCTIONS
from ray.data.block import BlockAccessor
from ray.exceptions import GetTimeoutError

from batchyard.errors import Stopped

ENGINE_STAGE = "vLLMEngineStage"
"""The name that `ray.data.llm` gives to the stage of a processor that calls vLLM."""
FIXED_CLUSTER = "batchyard_fixed_cluster"
"""An entry in the configuration of a dataset whose run needs no more nodes than there are."""
POLL_SECONDS = 0.02


class _WholeCluster(ClusterAutoscaler):  # type: ignore[misc]  # Ray has no types
    """Lets a run use the nodes of the cluster, and asks for no others."""

    def __init__(self) -> None:
        self._resources = ExecutionResources.from_resource_dict(ray.cluster_resources())

    def try_trigger_scaling(self) -> None:
        """Do nothing."""

    def on_executor_shutdown(self) -> None:
        """Do nothing."""

    def get_total_resources(self) -> ExecutionResources:
        return self._resources


_NO_STATISTICS = SimpleNamespace(
    register_dataset_to_stats_actor=lambda *_: None, update_execution_metrics=lambda *_: None
)
"""Keeps no statistics of runs for Ray's dashboard."""


def _cluster_autoscaler(
    topology: Any, resource_manager: Any, context: DataContext, *, execution_id: str
) -> ClusterAutoscaler:
    if context.get_config(FIXED_CLUSTER, False):
        return _WholeCluster()
    return create_cluster_autoscaler(topology, resource_manager, context, execution_id=execution_id)


# Ray Data has an actor for each of these. Their processes take 2.7 s of CPU to start, and 210 MiB.
streaming_executor.create_cluster_autoscaler = _cluster_autoscaler
streaming_executor._StatsManager = _NO_STATISTICS


def iter_blocks(dataset: Dataset, stopped: threading.Event) -> Generator[pa.Table]:
    """Run a dataset and yield each block as soon as it exists. Closing the generator stops the run.

    The public `iter_batches` holds blocks back unless it prefetches nothing. Then it leaks a thread in each run
    (Ray 2.60) and costs more. Ray's iterators wait for a block without end, so this looks whether there is one.
    """
    executor = dataset._create_executor()
    bundles = dataset._build_bundle_iterator(executor)
    _, output = executor._output_node
    try:
        while not stopped.is_set():
            if not (output._exception or output._finished or output.output_queue.has_next(None)):
                stopped.wait(POLL_SECONDS)
                continue
            bundle = next(bundles, None)
            if bundle is None:
                return
            for block in ray.get(list(bundle.block_refs)):
                yield BlockAccessor.for_block(block).to_arrow()
        raise Stopped
    finally:
        executor.shutdown(force=False)
        # Ray keeps the tasks of a run: a worker that runs a thousand segments would grow by tens of MiB (Ray 2.60).
        tasks = [operator._map_task for operator in executor._topology if hasattr(operator, "_map_task")]
        for key, task in list(CACHED_FUNCTIONS.items()):
            if any(task is operator_task for operator_task in tasks):
                CACHED_FUNCTIONS.pop(key, None)


class StartWatch(ExecutionCallback):  # type: ignore[misc]  # Ray has no types
    """Ends a dataset's run with GetTimeoutError if one of its actor pools has no actor after `seconds`.

    Ray's limit, `wait_for_min_actors_s`, blocks the caller, ignores signals and leaves the actors behind.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._started = False
        self._began = time.monotonic()

    def on_execution_step(self, executor: Any) -> None:
        if self._started:
            return
        pools = [operator.get_actor_info() for operator in executor._topology]
        self._started = all(pool.running or not pool.pending for pool in pools)
        if not self._started and time.monotonic() - self._began > self._seconds:
            raise GetTimeoutError(f"no actor started within {self._seconds:g} seconds")


def vllm_stage() -> Any:
    """The class of `ray.data.llm`'s stage that calls vLLM, as a base class. Imports torch."""
    from ray.llm._internal.batch.stages.vllm_engine_stage import vLLMEngineStageUDF

    return vLLMEngineStageUDF


def replace_vllm_stage(
    processor: Any, stage: type, constructor_arguments: Mapping[str, Any], map_batches_arguments: Mapping[str, Any]
) -> None:
    """Let `stage` call vLLM in a processor of `ray.data.llm`, with these arguments over the processor's.

    `ray.data.llm` has no public way to exchange a stage.
    """
    current = processor.stages[ENGINE_STAGE]
    # A copy: assignment to its fields would compute the stage's resources again, from an incomplete configuration.
    processor.stages[ENGINE_STAGE] = current.model_copy(
        update={
            "fn": stage,
            "fn_constructor_kwargs": {**current.fn_constructor_kwargs, **constructor_arguments},
            "map_batches_kwargs": {**current.map_batches_kwargs, **map_batches_arguments},
        }
    )
