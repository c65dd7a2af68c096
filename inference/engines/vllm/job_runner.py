"""Engine `vllm-job`: rows to answers through `ray.data.llm`, with engines that live as long as one run.

Importing this module imports torch. Only a process that runs such a model does so.
"""

import functools
import math
import re
import threading
from collections.abc import Generator
from contextlib import closing
from typing import Any

import pyarrow as pa
import ray
import ray.data
import ray.data.llm
from ray.data.exceptions import ExecutionTimeoutError
from ray.exceptions import ActorDiedError, GetTimeoutError, RayError, RayTaskError

from batchyard.errors import EngineError, EngineStartError
from batchyard.failures.endings import actor_death
from batchyard.failures.reasons import explained
from batchyard.models import CAPACITY, ModelSpec
from inference.answers import ANSWERS
from inference.engines.start_errors import start_error, start_timed_out
from inference.engines.vllm import internals
from inference.engines.vllm.job import JobArguments
from inference.engines.vllm.job_stage import AnswerStage
from inference.engines.weights import model_sha256
from inference.ray_data_internals import StartWatch, iter_blocks, replace_vllm_stage
from inference.waits import wait

LIGHT_CPUS = 0.001
"""For tasks of milliseconds, which need not wait until a CPU is free."""
RESTARTS = 2
"""Restarts of a replica whose engine dies. Its rows run again, so a row that kills it would never end."""
REASON = re.compile(rf"{EngineStartError.__name__}: (.+)")


def run(
    spec: ModelSpec,
    endpoint: str,
    rows: pa.Table,
    *,
    request_timeout: float,
    start_timeout: float,
    stopped: threading.Event,
) -> Generator[pa.Table]:
    """Start the model's replicas, answer every row, and stop the replicas: `pipeline.run` for this engine.

    `rows`: as in `pipeline.run`.

    Yields:
        Tables with the schema ANSWERS. Each is one batch of rows, complete when its last row is answered.

    Raises:
        Stopped: `stopped` is set.
        EngineStartError: an engine does not start, or none within `start_timeout` seconds.
        EngineError: an engine died more than RESTARTS times, or Ray failed.
    """
    if rows.num_rows == 0:
        return
    arguments = JobArguments.model_validate(spec.engine_args)
    rows, size = rows.select(["line", "custom_id", "body"]), arguments.batch_size
    dataset = ray.data.from_blocks([rows.slice(start, size) for start in range(0, rows.num_rows, size)])
    dataset.context.custom_execution_callback_classes = [functools.partial(StartWatch, start_timeout)]
    dataset.context.execution_no_progress_timeout_s = max(24 * 3600.0, 2 * (request_timeout + start_timeout))
    dataset.context.enable_progress_bars = False
    dataset.context.print_on_execution_start = False
    answered = _processor(spec, endpoint, arguments, request_timeout)(dataset)
    try:
        with closing(iter_blocks(answered, stopped)) as tables:
            for table in tables:
                yield table.select(ANSWERS.names).cast(ANSWERS)
    except (RayError, ExecutionTimeoutError) as error:
        raise _error(spec, error, start_timeout) from error


def versions(spec: ModelSpec, *, start_timeout: float, stopped: threading.Event) -> dict[str, str]:
    """Return the versions behind answers, from the cluster. Raises Stopped; EngineStartError, with the reason."""
    reference = ray.remote(_versions).options(num_cpus=LIGHT_CPUS).remote(spec)
    ready, _ = wait([reference], stopped, timeout=start_timeout)
    if not ready:
        ray.cancel(reference)
        raise EngineStartError(start_timed_out(spec, start_timeout))
    try:
        versions: dict[str, str] = ray.get(reference)
    except RayTaskError as error:
        raise start_error(spec, error) from error
    return versions


def _versions(spec: ModelSpec) -> dict[str, str]:
    import torch
    import transformers

    return {
        "engine": "vllm-job",
        "version": internals.__version__,
        "ray": ray.__version__,
        "torch": str(torch.__version__),  # whoever unpickles its class imports torch
        "transformers": transformers.__version__,
        "model": spec.source,
        "model_sha256": model_sha256(spec.source),
    }


def _processor(spec: ModelSpec, endpoint: str, arguments: JobArguments, request_timeout: float) -> Any:
    """`ray.data.llm`'s processor with only its engine stage, which renders and tokenises as vLLM's server does.

    Ray's stages for that are off. They put a second BOS token before some models' chats, continue a chat whose last
    message is not the user's, return the text behind a stop string, and end the run at the first row that a template
    refuses.
    """
    in_flight = spec.in_flight((arguments.model_extra or {}).get("max_num_seqs") or CAPACITY)
    config = ray.data.llm.vLLMEngineProcessorConfig(
        model_source=spec.source,
        task_type="embed" if endpoint == "/v1/embeddings" else "generate",
        engine_kwargs=dict(arguments.model_extra or {}),
        batch_size=arguments.batch_size,
        max_concurrent_batches=arguments.max_concurrent_batches or math.ceil(in_flight / arguments.batch_size),
        concurrency=(spec.replicas, spec.max_replicas or spec.replicas),
        placement_group_config=_placement(spec),
        should_continue_on_error=True,
        log_engine_metrics=False,  # needs ray[serve]
        chat_template_stage=False,
        tokenize_stage=False,
        detokenize_stage=False,
    )
    names = ANSWERS.names
    light = {"num_cpus": LIGHT_CPUS}
    processor = ray.data.llm.build_processor(
        config,
        # Not a function of this module: Ray would import the module, and torch, in each process that calls it.
        postprocess=lambda row: {name: row[name] for name in names},
        preprocess_map_kwargs=light,
        postprocess_map_kwargs=light,
    )
    constructor_arguments = {"spec": spec, "endpoint": endpoint, "request_timeout": request_timeout}
    replace_vllm_stage(processor, AnswerStage, constructor_arguments, {"max_restarts": RESTARTS})
    return processor


def _placement(spec: ModelSpec) -> dict[str, Any] | None:
    """The resources Ray reserves for each worker of a replica. None: a GPU and a CPU, Ray's default."""
    if spec.num_gpus is None and ray.cluster_resources().get("GPU"):
        return None
    workers = spec.engine_args.get("tensor_parallel_size", 1) * spec.engine_args.get("pipeline_parallel_size", 1)
    gpus = {"GPU": spec.num_gpus / workers} if spec.num_gpus else {}
    return {"bundle_per_worker": {"CPU": 1, **gpus}}


def _error(spec: ModelSpec, error: Exception, start_timeout: float) -> EngineError:
    if isinstance(error, GetTimeoutError):
        return EngineStartError(start_timed_out(spec, start_timeout))
    where = f"engine {spec.engine} of model {spec.name}"
    reason = REASON.search(str(error))
    if reason is not None:  # Ray passes on the error of an actor's start as text only
        return EngineStartError(f"{where} does not start: {reason[1]}")
    if isinstance(error, ActorDiedError):
        return EngineError(f"{where} died more than {RESTARTS} times: {explained(actor_death(str(error)))}")
    return EngineError(f"{where}: Ray could not run the rows: {error}")
