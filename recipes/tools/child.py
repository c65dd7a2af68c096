"""The process of one call: what it may use, and what the tool returns."""

import asyncio
import contextlib
import inspect
import os
import resource
import signal
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import orjson
import psutil
from pydantic import validate_call
from pydantic_core import to_jsonable_python

from batchyard import json_lines, kinship
from batchyard.recipes import Tool
from batchyard.recipes.tools import KEY

MEBIBYTE = 1024 * 1024


def run(tool: Tool, arguments: Mapping[str, Any], key: str, folder: Path, result: int, printed: int) -> NoReturn:
    """Call a tool in this forked process, in its own `folder`, and end. Outcome and prints go to descriptors."""
    status = 1
    try:
        kinship.end_with_parent()
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, standard in ((nothing, 0), (printed, 1), (printed, 2)):
            os.dup2(descriptor, standard)
        os.chdir(folder)
        os.environ["TMPDIR"] = str(folder)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # What is only reserved does not count on Linux: Node, for example, reserves gigabytes.
        info = psutil.Process().memory_info()
        kind, present = (resource.RLIMIT_DATA, info.data) if hasattr(info, "data") else (resource.RLIMIT_AS, info.vms)
        resource.setrlimit(kind, (present + tool.memory_mb * MEBIBYTE,) * 2)
        write(result, json_lines.dumps(_outcome(tool, arguments, key)))
        status = 0
    except BaseException:  # noqa: BLE001  the server reports the end of what it printed
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(status)  # what the server has registered for its own end is not the call's


def _outcome(tool: Tool, arguments: Mapping[str, Any], key: str) -> dict[str, Any]:
    try:
        values = {**arguments, KEY: key} if KEY in inspect.signature(tool.function).parameters else arguments
        function = validate_call(tool.function) if inspect.isfunction(tool.function) else tool.function
        value = function(**values)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
        if not (isinstance(value, str) and len(value) > tool.output_bytes):  # before memory runs out
            content = json_lines.dumps(value, default=to_jsonable_python)
            if len(content) <= tool.output_bytes:
                return {"ok": True, "value": orjson.Fragment(content)}
        return _failed("output_too_large", f"Its result is larger than {tool.output_bytes} bytes.")
    except MemoryError:
        return _failed("tool_error", f"It took more than {tool.memory_mb} MiB of memory.")
    except BaseException as error:  # noqa: BLE001  whatever it is harms its own call alone
        return _failed("tool_error", f"{type(error).__name__}: {error}")


def _failed(code: str, message: str) -> dict[str, Any]:
    return {"ok": False, "error": {"code": code, "message": message}}


def write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
