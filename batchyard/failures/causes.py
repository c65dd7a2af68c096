"""The table of causes: what the text of a failure says, and what to do.

The table reads messages of Batchyard, vLLM 0.32, torch, transformers and Ray 2.60. Causes (a refused argument, a
missing module, too little memory) come before what follows from them (an engine that is late, an actor that died).
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from batchyard.wording import fill

Category = Literal[
    "timeout", "memory", "dependency", "cluster", "argument", "model", "device", "machine", "crash", "unknown"
]
Severity = Literal["critical", "error", "warning"]
"""`critical`: the model cannot run until somebody acts. `error`: this configuration cannot run. `warning`: it ran, and
not to its end."""
OF_MEMORY: frozenset[Category] = frozenset({"memory", "crash"})
"""Categories in which memory may be the cause."""
NO_KILL = "the kernel ended no process for want of memory"
_SMALLER = "lower engine_args.max_num_seqs or max_model_len, or take a larger machine or a smaller model"


class Rule(NamedTuple):
    """A line of the table."""

    name: str  # what other tables call it
    category: Category
    severity: Severity
    pattern: re.Pattern[str]
    remedy: str  # a sentence; a name in braces is a group of the pattern. Empty where the cause says it all.


def _rule(name: str, category: Category, severity: Severity = "error") -> Callable[[str, str], Rule]:
    """Return what makes a rule of a pattern and its remedy."""
    return lambda pattern, remedy: Rule(name, category, severity, re.compile(pattern, re.IGNORECASE), remedy)


CAUSES: Sequence[Rule] = (
    _rule("unknown argument", "argument")(
        r"engine_args\.(?P<key>\w+): .* has no such argument; (?:did you mean (?P<nearest>\w+)\?|leave it out)",
        "",
    ),
    _rule("unexpected argument", "argument")(
        r"unexpected keyword argument '(?P<key>\w+)'",
        "leave engine_args.{key} out",
    ),
    _rule("command", "argument", "critical")(
        r"the server's program (?P<program>\S+) cannot be started",
        "install {program} on every node, or name its environment's interpreter with python",
    ),
    _rule("other model", "argument", "critical")(
        r"the server of another model: it lists (?P<name>[^,]+).*, not ",
        "set engine_args.model to the name that it lists, such as {name}, or have the command serve another model",
    ),
    _rule("few batched tokens", "argument")(
        r"max_num_batched_tokens \(\d+\) (?:must be .*max_num_seqs|is smaller than max_model_len) \((?P<least>\d+)\)",
        "set engine_args.max_num_batched_tokens to {least} at least",
    ),
    _rule("long context", "argument")(
        r"greater than the derived max_model_len \(\w+=(?P<most>\d+)",
        "lower engine_args.max_model_len to {most}, or leave it out",
    ),
    _rule("architecture", "dependency", "critical")(
        r"Model architectures .{0,200}failed to be inspected",
        "see the engine's lines in `batchyard logs` for the package that it misses; without torchvision, which is not "
        "installed beside the CPU build of torch, take another architecture",
    ),
    _rule("argument", "argument")(
        r"engine_args\.[\w.]+: |Value error, |error: argument --|validation errors? for \w*Config",
        "give the argument a value that the engine takes",
    ),
    _rule("chat template", "model", "critical")(
        r"chat[ _]template.*(?:not set|no longer allowed|must provide|missing|is required|not found)"
        r"|(?:no|missing|without a) (?:default )?chat template",
        "put chat_template.jinja into the model's folder, or name one in engine_args.chat_template",
    ),
    _rule("tokenizer", "model", "critical")(
        r"Can't load tokenizer|Couldn't instantiate the backend tokenizer"
        r"|Unable to load (?:the )?(?:vocabulary|tokenizer)"
        r"|tokenizer(?:_config)?\.json.* (?:not found|does not exist|is missing)",
        "put the tokenizer's files into the model's folder, or name their place in engine_args.tokenizer",
    ),
    _rule("gated model", "model", "critical")(
        r"gated repo|GatedRepoError|access to (?:this )?model .* is restricted|401 Client Error|403 Client Error",
        "accept the model's terms at its hub, and set HF_TOKEN in the environment of the Ray nodes",
    ),
    _rule("missing model", "model", "critical")(
        r"not a valid model identifier|RepositoryNotFound|LocalEntryNotFound|Repo id must|Invalid repository ID"
        r"|couldn't connect to|outgoing traffic has been disabled|offline mode is enabled"
        r"|Can't load the (?:configuration|model)|does not appear to have a file named"
        r"|Cannot find any model weights|No such file or directory: \S*(?:config\.json|\.safetensors)",
        "see that `source` names a folder with the model's files on every node, or a model of a hub that it can reach",
    ),
    _rule("kernel", "device", "critical")(
        r"no kernel image|PTX was compiled with an unsupported toolchain|undefined symbol"
        r"|not (?:supported|compatible) (?:on|with) (?:this|the current) (?:GPU|PyTorch)"
        r"|capability sm_\d+ is not compatible",
        "install builds of torch and vLLM that were made for this GPU",
    ),
    _rule("context that fits", "memory")(
        r"estimated maximum model length is (?P<most>\d+)",
        "lower engine_args.max_model_len to {most}, the longest that fits, or give the cache more memory",
    ),
    _rule("share of the device", "memory")(
        r"Free memory on device \S+ \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than",
        "lower engine_args.gpu_memory_utilization below {free}/{total}, or end the processes that hold the memory",
    ),
    _rule("cache", "memory")(
        r"No available memory for the cache blocks|larger than the available KV cache memory",
        "raise engine_args.kv_cache_memory_bytes or gpu_memory_utilization, or lower max_model_len",
    ),
    _rule("memory of the GPU", "memory")(
        r"CUDA out of memory|OutOfMemoryError|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY",
        "lower engine_args.max_num_seqs, max_model_len or gpu_memory_utilization, or take a larger GPU",
    ),
    _rule("killed by somebody", "crash")(
        rf"SIGKILL.*{NO_KILL}",
        "find what on this machine ends processes (a person, Ray's memory monitor, systemd-oomd)",
    ),
    _rule("killed", "memory")(
        r"signal 9\b|SIGKILL|exit code:? (?:-9|137)\b|oom.?kill",
        "see the kernel's log for its out-of-memory killer; lower engine_args.max_num_seqs or kv_cache_memory_bytes, "
        "or take a larger machine",
    ),
    _rule("memory", "memory")(
        r"out of memory|OutOfMemory|cannot allocate memory|can't allocate memory|\bMemoryError\b|std::bad_alloc"
        r"|not enough memory|running low on memory|memory pressure",
        _SMALLER,
    ),
    _rule("disk", "machine", "critical")(
        r"No space left on device|Disk quota exceeded|ENOSPC",
        "make room on the disk that it names (models of hubs: HF_HOME; Ray: /tmp and /dev/shm)",
    ),
    _rule("port", "machine")(
        r"Address already in use|EADDRINUSE|port \d+ is (?:already )?in use",
        "end the process that has the port, or let the engine start again: it takes another port",
    ),
    _rule("instruction", "crash")(
        r"SIGILL|illegal instruction",
        'this CPU lacks an instruction of the engine\'s kernels: set engine_args.dtype = "float32", or if it is that '
        "already, install a build of the engine for this CPU",
    ),
    _rule("device", "device")(
        r"CUDA (?:driver )?error|CUDA error:|cudaError|CUBLAS_STATUS|CUDNN_STATUS|NCCL error|ncclSystemError|NVML"
        r"|No CUDA GPUs are available|Found no NVIDIA driver|device-side assert",
        "see `nvidia-smi` and the kernel's log (Xid) on that node; if the GPU is well, run fewer requests at once",
    ),
    _rule("abort", "crash")(
        r"SIGABRT|SIGBUS|SIGSEGV|SIGFPE|segmentation fault|bus error",
        "see the engine's lines in `batchyard logs`; SIGBUS: make room in /dev/shm; else set "
        "engine_args.enforce_eager = true, or take other builds of torch and vLLM",
    ),
    _rule("module", "dependency", "critical")(
        r"No module named '(?P<module>[\w.]+)'",
        "install {module} on every machine where the engine runs; nothing was installed",
    ),
    _rule("module", "dependency", "critical")(
        r"(?P<module>lib[\w.+-]+\.so[\w.]*): cannot open shared object file",
        "install {module} on every machine where the engine runs; nothing was installed",
    ),
    _rule("module", "dependency", "critical")(
        r"has no attribute 'init_cpu_memory_env'",  # vLLM's CPU build says so, and no more
        "install libnuma (Debian: libnuma1) on every machine where the engine runs; nothing was installed",
    ),
    _rule("module", "dependency", "critical")(
        r"cannot import name '(?P<module>\w+)'",
        "install the version that has {module} on every machine where the engine runs; nothing was installed",
    ),
    _rule("module", "dependency", "critical")(
        r"ModuleNotFoundError|ImportError|needs vLLM where segments run|is not installed",
        "install what it names on every machine where the engine runs; nothing was installed",
    ),
)
"""What an engine cannot run with."""
SYMPTOMS: Sequence[Rule] = (
    _rule("server not ready", "timeout")(
        r"did not start within .*was not ready yet",
        "see the server's lines in `batchyard logs`; set `ready` to a path that it answers with 200, or raise "
        "BATCHYARD_ENGINE_START_TIMEOUT",
    ),
    _rule("server ended", "crash")(
        r"the server (?:ended with exit code|was ended)",
        "see the server's lines in `batchyard logs`, and run its command by hand; one that starts in the background "
        "has to stay in the foreground",
    ),
    _rule("slow start", "timeout")(
        r"did not start within",
        "raise BATCHYARD_ENGINE_START_TIMEOUT, or free what the engine waits for",
    ),
    _rule("slow request", "timeout")(
        r"request_timeout|ran longer than|answered nothing for|no progress|timed out|TimeoutError",
        "raise BATCHYARD_REQUEST_TIMEOUT, or run fewer requests at once (engine_args.max_num_seqs)",
    ),
    _rule("no GPU free", "cluster", "critical")(
        r"waits for a GPU: engines of",
        "wait until the other models have no work, or stop their engines",
    ),
    _rule("cluster", "cluster", "critical")(
        r"no Ray cluster|Ray could not run|the Ray node|\bnode of the engine|Ray(System|Task)Error|NodeDiedError"
        r"|\bGCS\b|raylet|\bnode \S* ?(has |was |is )?(died|dead|lost|terminated)",
        "see that Ray and its nodes are up (`ray status`), then run the same command; nothing was restarted",
    ),
    _rule("process", "cluster")(
        r"RayActorError|Actor(Died|Unavailable|Unschedulable)Error|WorkerCrashedError|worker process has died"
        r"|ended without a word"
        r"|\bactor \S* ?(is |has )?(died|dead|unavailable)|engine_died|\bdied (\d+ times|each time)|ended each time",
        "see `batchyard logs`, and the kernel's log for its out-of-memory killer",
    ),
)
"""What follows from causes that nobody has named."""


class Match(NamedTuple):
    """A rule that knows a text, and where in it."""

    rule: Rule
    match: re.Match[str]

    @property
    def remedy(self) -> str:
        return fill(self.rule.remedy, self.match.groupdict())


def find(text: str, rules: Iterable[Rule] = (*CAUSES, *SYMPTOMS)) -> Match | None:
    """Return the first of the rules that knows the text."""
    return next((Match(rule, match) for rule in rules if (match := rule.pattern.search(text))), None)
