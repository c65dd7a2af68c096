"""Tools of MCP servers: `<name>.mcp.json` in the folder of recipes says where a server is, and what its tools are.

`batchyard tools add` writes such a file from what the server says. Models and processes go by the file, so a server
that is away, or says something else tomorrow, changes no job. Each call opens a session of its own, in the call's
process: a server that hangs, or is a process that crashes, costs that call alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from batchyard import plugins
from batchyard.errors import ConfigurationError
from batchyard.recipes import Tool
from batchyard.recipes.tools import Mode

SUFFIX = ".mcp.json"
PACKAGE = "mcp"
MAX_NAME = 64
"""Most characters of a tool's name."""


class McpTool(BaseModel):
    """A tool as its server describes it. `mode` is the operator's to change, and `called`, its name for models."""

    model_config = ConfigDict(extra="forbid")
    name: str
    called: str | None = None
    description: str = ""
    parameters: dict[str, Any]
    mode: Mode = "once"


class McpServer(BaseModel):
    """A server: a command that speaks over its standard input and output, or a URL.

    Variables of the environment in `env` and `headers`, such as `${TOKEN}`, are filled in when a call begins.
    """

    model_config = ConfigDict(extra="forbid")
    command: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    url: str | None = None
    headers: dict[str, str] = {}
    seconds: float = Field(60.0, gt=0)
    memory_mb: int = Field(2048, ge=1)
    output_bytes: int = Field(64 * 1024, ge=1)
    tools: list[McpTool] = []

    @model_validator(mode="after")
    def _has_one_way(self) -> McpServer:
        if (self.command is None) == (self.url is None):
            raise ValueError("a server has either a `command` or a `url`")
        return self


@dataclass(frozen=True)
class RemoteTool:
    """Calls a tool of a server, and returns its structured content, else its texts. `file` is where it stands."""

    server: McpServer
    name: str
    file: Path

    async def __call__(self, *, idempotency_key: str, **arguments: Any) -> Any:
        async with AsyncExitStack() as stack:
            client = await _connected(self.server, stack)
            result = await client.call_tool(self.name, arguments, meta={"idempotency_key": idempotency_key})
        texts = "\n".join(part.text for part in result.content if part.type == "text")
        if result.is_error:
            raise RuntimeError(texts or "the server reports an error")
        others: Sequence[str] = [part.type for part in result.content if part.type != "text"]
        if result.structured_content is not None:
            return result.structured_content
        return texts if not others else {"text": texts, "left_out": others}


def tools_of(folder: Path) -> list[Tool]:
    """Return the tools of all servers of a folder. Raises ConfigurationError."""
    tools = []
    for file in sorted(folder.glob(f"[!.]*{SUFFIX}")):
        try:
            server = McpServer.model_validate_json(file.read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise ConfigurationError(f"{file}: {place or 'the file'}: {first['msg']}") from None
        plugins.require("mcp", str(file))
        limits = server.model_dump(include={"seconds", "memory_mb", "output_bytes"})
        for entry in server.tools:
            name = entry.called or f"{file.name.removesuffix(SUFFIX)}_{entry.name}"
            values = entry.model_dump(include={"description", "parameters", "mode"})
            tools.append(Tool(name=name, function=RemoteTool(server, entry.name, file), **values, **limits))
    return tools


def renamed(server: str, tools: Sequence[McpTool]) -> list[McpTool]:
    """Return a server's tools with names for models: MCP allows more characters, and longer names, than their APIs."""
    prefix, longest = f"{server}_", MAX_NAME - len(server) - 1
    plain = [re.sub(r"[^A-Za-z0-9_-]", "_", tool.name) for tool in tools]
    names = [
        name
        if len(name) <= longest and (name == tool.name or plain.count(name) == 1)
        else f"{name[: max(0, longest - 9)]}_{hashlib.sha256(tool.name.encode()).hexdigest()[:8]}"
        for name, tool in zip(plain, tools, strict=True)
    ]
    return [
        tool.model_copy(update={"called": prefix + name if name != tool.name else None})
        for name, tool in zip(names, tools, strict=True)
    ]


async def asked(server: McpServer) -> list[McpTool]:
    """Return the tools that a server says it has. Raises ConfigurationError if it cannot be asked."""
    plugins.require("mcp", server.command or str(server.url))
    try:
        async with asyncio.timeout(server.seconds):
            return await _listed(server)
    except Exception as error:
        reason: BaseException = error
        while isinstance(reason, BaseExceptionGroup):
            reason = reason.exceptions[0]
        raise ConfigurationError(
            f"the MCP server {server.command or server.url} does not answer: {type(reason).__name__}: {reason}"
        ) from error


async def _listed(server: McpServer) -> list[McpTool]:
    """Return the tools of a server. Those that only read, or may be repeated, are `retriable`."""
    tools: list[McpTool] = []
    async with AsyncExitStack() as stack:
        client = await _connected(server, stack)
        cursor = None
        while True:
            page = await client.list_tools(cursor=cursor)
            for entry in page.tools:
                hints, description = entry.annotations, entry.description or ""
                mode: Mode = "retriable" if hints and (hints.read_only_hint or hints.idempotent_hint) else "once"
                tools.append(
                    McpTool(name=entry.name, description=description, parameters=entry.input_schema, mode=mode)
                )
            cursor = page.next_cursor
            if cursor is None:
                return tools


async def _connected(server: McpServer, stack: AsyncExitStack) -> Any:
    import httpx2
    from mcp import Client, StdioServerParameters
    from mcp.client.streamable_http import streamable_http_client

    transport: Any
    if server.command is not None:
        transport = StdioServerParameters(command=server.command, args=server.args, env=_filled(server.env))
    elif server.headers:
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=_filled(server.headers), timeout=None))
        transport = streamable_http_client(server.url or "", http_client=http)
    else:
        transport = server.url
    return await stack.enter_async_context(Client(transport))


def _filled(values: Mapping[str, str]) -> dict[str, str]:
    return {name: os.path.expandvars(value) for name, value in values.items()}
