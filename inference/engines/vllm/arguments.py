"""The arguments of vLLM's engine, their names, and the environment that it reads in the process it starts in."""

import ast
import functools
import importlib.util
import math
import os
from argparse import Namespace
from pathlib import Path
from typing import Any, ClassVar, get_args

from batchyard.endpoints.catalog import AUDIO
from batchyard.errors import ConfigurationError, EngineStartError
from batchyard.models import ModelSpec
from inference import heads
from inference.engine import Capabilities
from inference.engines import adapters
from inference.engines.bounded_steps import STEP_SECONDS
from inference.engines.vllm import internals
from inference.engines.vllm.internals import NAMES
from inference.requests import media

CPU_DEFAULTS = {
    "enforce_eager": True,
    "kv_cache_memory_bytes": 2**30,
    "gpu_memory_utilization": 0.1,
    "block_size": 32,
    "max_num_seqs": 256,
    "worker_cls": f"{__package__}.cpu_worker.CPUWorker",
}
"""On the CPU torch.compile costs more than it saves, and the memory share is a share of all memory. Prompts share whole
blocks of the KV cache: with vLLM's 128 tokens a block, 240 prompts with four beginnings took 1.4 times as long. 256
requests at once are vLLM's default for throughput, where its server, whose other defaults the engine takes, has 128.
vLLM's worker dies of requests with a seed whose prompts exceed a step; ours does not."""
ONE_PROCESS = internals.NAMES["UniProcExecutor"].replace(":", ".")
"""On few CPUs the model runs in the process that schedules it. By default vLLM starts a second process, bound to all
CPUs but one, and the two wait for each other in busy loops. On two CPUs, 6,000 requests to 1 M parameters took 16.5 s
and 24 s of CPU time instead of 20.7 and 40, and the engine started in 22 s instead of 32."""
NO_DOMAIN = "none.invalid"
"""A domain that cannot exist (RFC 2606)."""
INVARIANT_CAPABILITY = 80
"""The oldest GPUs of NVIDIA's on which VLLM_BATCH_INVARIANT holds."""
MAX_RANK = 512
"""The greatest rank of an adapter that vLLM takes."""
MAX_ADAPTERS = 8
"""Adapters in one step on a GPU, whose memory has a place for each, as large as the greatest rank needs."""
PARALLEL = {"tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"}
FEW_CPUS = 4
SMALL_BYTES = 16 * 2**20
"""The threads of a smaller model wait for each other more than they work. With 1 M parameters, two threads took 1.4
times as long as one; with 5 M as long; with 15 M and 300 M a third less."""
KEPT_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_TOP_PAD_": str(64 * 2**20)}
"""glibc takes each tensor of a step from the system and gives it back, and the system clears its pages each time. An
engine that keeps them answered 128 chats by 300 M parameters in 49.6 s instead of 54.2."""


@functools.cache
def argument_names(*classes: str) -> frozenset[str] | None:
    """Return the fields of these dataclasses of `internals.NAMES`; None where vLLM is not installed."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return None
    root, names = Path(spec.submodule_search_locations[0]), frozenset[str]()
    for name in classes:
        module, _, attribute = NAMES[name].partition(":")
        names |= _fields(root.joinpath(*module.split(".")[1:]).with_suffix(".py"), attribute)
    return names


def _fields(file: Path, name: str) -> frozenset[str]:
    """Return the fields of a dataclass and of its bases in the same file."""
    classes = {node.name: node for node in ast.parse(file.read_bytes()).body if isinstance(node, ast.ClassDef)}

    def fields(node: ast.ClassDef) -> frozenset[str]:
        inherited = (fields(classes[base.id]) for base in node.bases if isinstance(base, ast.Name))
        annotated = (each for each in node.body if isinstance(each, ast.AnnAssign))
        return frozenset[str]().union(
            *inherited,
            {
                each.target.id
                for each in annotated
                if isinstance(each.target, ast.Name) and "ClassVar" not in ast.unparse(each.annotation)
            },
        )

    return fields(classes[name])


def engine_arguments(spec: ModelSpec) -> Namespace:
    """Return vLLM's arguments: its defaults, under ours, under the model's `engine_args`."""
    parser = internals.FlexibleArgumentParser()
    internals.BaseFrontendArgs.add_cli_args(parser)
    internals.AsyncEngineArgs.add_cli_args(parser)
    arguments: Namespace = parser.parse_args([])
    ours = {
        **defaults(spec),
        "model": spec.source,
        "served_model_name": [spec.name],
        "enable_prompt_tokens_details": True,
        "enable_log_requests": False,
    }
    if not generates(spec):
        ours["runner"] = "pooling"
    if spec.adapters:
        ours |= _adapters(spec)
    for key, value in {**ours, **spec.engine_args}.items():
        setattr(arguments, key, value)
    # An empty list would allow every domain.
    arguments.allowed_media_domains = media.allowed_domains(spec) or [NO_DOMAIN]
    return arguments


def _adapters(spec: ModelSpec) -> dict[str, Any]:
    """Return the arguments that load all adapters. Raises ConfigurationError for too few CPU places."""
    folders = {name: adapters.downloaded(adapter.source) for name, adapter in spec.adapters.items()}
    number, most = len(folders), max(adapters.rank(adapters.config_of(folder)) for folder in folders.values())
    ranks: tuple[int, ...] = get_args(internals.MaxLoRARanks)
    # A step of requests has at most so many adapters, by default one: others would wait for the next.
    # vLLM's operators for the CPU add the weights of the last place to requests without an adapter, so it stays empty.
    on_cpu = internals.current_platform.is_cpu()
    places = number + 1 if on_cpu else min(number, MAX_ADAPTERS)
    if on_cpu and spec.engine_args.get("max_loras", places) < places:
        raise ConfigurationError(
            f"models.{spec.name}.engine_args.max_loras: on the CPU vLLM gives rows without an adapter the weights "
            f"in the last place, which has to stay empty; set at least {places}, or leave it out"
        )
    return {
        "enable_lora": True,
        "max_lora_rank": min(rank for rank in ranks if rank >= most),
        "max_loras": places,
        "max_cpu_loras": max(number, places),
        "lora_modules": [internals.LoRAModulePath(name=name, path=str(folder)) for name, folder in folders.items()],
    }


class OfVLLM(Capabilities):
    """The facts of both engines that are vLLM."""

    batch_argument: ClassVar[str | None] = "max_num_seqs"
    package: ClassVar[str | None] = "vllm"

    @classmethod
    def cache_bytes(cls, spec: ModelSpec, token_bytes: int | None) -> int | None:
        return int({**CPU_DEFAULTS, **spec.engine_args}["kv_cache_memory_bytes"])

    @classmethod
    def structure(cls, kind: str, value: Any) -> dict[str, Any]:
        return {"structured_outputs": {kind: value}}


def generates(spec: ModelSpec) -> bool:
    """True for a model with an endpoint that needs a head for text; any other is loaded for vectors or labels."""
    return any(path in heads.NEED_TEXT for path in spec.endpoints)


def defaults(spec: ModelSpec) -> dict[str, Any]:
    """Our defaults for vLLM's arguments; `engine_args` override them."""
    arguments: dict[str, Any] = {"disable_log_stats": True, "scheduling_policy": "priority"}
    # Of others vLLM knows which can: an encoder, which reads both ways, does not start with it, and a Whisper, whose
    # decoder looks at an encoder, dies of its second request.
    if generates(spec) and not set(spec.endpoints) <= set(AUDIO):
        arguments["enable_prefix_caching"] = True
    if internals.current_platform.is_cpu():
        arguments |= CPU_DEFAULTS
        arguments |= {"dtype": "float32"} if spec.reproducible else {}
    if few_cpus() and not PARALLEL & spec.engine_args.keys():
        arguments["distributed_executor_backend"] = ONE_PROCESS
    return arguments


def set_environment(spec: ModelSpec) -> None:
    """Set the variables that vLLM reads. Call it before vLLM starts in this process.

    Raises EngineStartError: vLLM cannot keep the promise of `reproducible` on this machine.
    """
    if spec.reproducible and not (platform := internals.current_platform).is_cpu():
        # vLLM starts on older GPUs, too, where its kernels do not keep this promise.
        if platform.is_cuda() and not platform.has_device_capability(INVARIANT_CAPABILITY):
            raise EngineStartError(
                f"reproducible: vLLM needs a GPU of compute capability 8.0, and {platform.get_device_name()} has less; "
                "remove it, or use another GPU"
            )
        if not (platform.is_cuda() or platform.is_rocm() or platform.is_xpu()):
            raise EngineStartError(f"reproducible: vLLM does not support it on {platform.device_name}; remove it")
        os.environ["VLLM_BATCH_INVARIANT"] = "1"
    os.environ.pop(STEP_SECONDS, None)
    # With `reproducible`, the parts of a prompt must not depend on live requests.
    if (seconds := spec.live.step_seconds) is not None and not spec.reproducible:
        os.environ[STEP_SECONDS] = str(seconds)
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")  # a process that a signal ends writes where it was
    os.environ["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] = "0"  # an allowed domain could redirect to another
    if all(Path(source).is_dir() for source in (spec.source, *(each.source for each in spec.adapters.values()))):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Ray sets one thread per CPU of the actor, at least one. vLLM chooses the number itself if it is not set.
    os.environ.pop("OMP_NUM_THREADS", None)
    if internals.current_platform.is_cpu():  # on the GPU tensors come from CUDA's allocator
        for name, value in KEPT_MEMORY.items():
            os.environ.setdefault(name, value)  # of the process that vLLM starts for the model
    if few_cpus():
        os.environ["OMP_NUM_THREADS"] = "1" if weights_bytes(spec.source) < SMALL_BYTES else str(os.cpu_count())


def few_cpus() -> bool:
    """True if vLLM runs on the CPU and this machine has at most FEW_CPUS."""
    return bool(internals.current_platform.is_cpu()) and (os.cpu_count() or 1) <= FEW_CPUS


def weights_bytes(source: str) -> float:
    """Return the size of a model's weights; infinite if they are in no local folder yet."""
    folder = Path(source)
    if not folder.is_dir():
        return math.inf
    return sum(file.stat().st_size for file in folder.glob("*") if file.suffix in (".safetensors", ".bin", ".pt"))
