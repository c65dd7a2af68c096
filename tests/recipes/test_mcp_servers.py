"""Tools of MCP servers: asked for once, kept in a file, and called in processes of their own."""

from __future__ import annotations

import asyncio
import json
import queue
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import mcp.client.stdio  # noqa: F401  its default for errors is what standard error is when it is imported
import pytest
from click.testing import CliRunner, Result

from batchyard.cli.main import cli
from batchyard.errors import ConfigurationError
from batchyard.recipes import Call, Called
from recipes import mcp_servers, registry
from recipes.mcp_servers import McpServer, RemoteTool
from recipes.tools.pool import ToolCalls
from tests.support.rows import until

pytestmark = pytest.mark.long

SERVER = '''
import os, sys, time
from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("shop")

@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def price(fruit: str, pieces: int = 1) -> dict[str, int | str]:
    """The price of a fruit."""
    return {"price": 3 * pieces, "currency": os.environ.get("CURRENCY", "EUR")}

@server.tool()
def order(fruit: str) -> str:
    """Order a fruit."""
    if fruit == "hang":
        time.sleep(60)
    if fruit == "crash":
        os._exit(1)
    if fruit != "apple":
        raise ValueError(f"there is no {fruit}")
    return "ordered"

if sys.argv[1:]:
    import socket, uvicorn
    bound = socket.socket(fileno=int(sys.argv[1]))
    uvicorn.Server(uvicorn.Config(server.streamable_http_app())).run(sockets=[bound])
else:
    server.run()
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of recipes with a server's file, which the command has written."""
    folder = tmp_path_factory.mktemp("recipes")
    script = tmp_path_factory.mktemp("server") / "server.py"
    script.write_text(SERVER)
    command = ["tool", "add", "shop", "--env", "CURRENCY=${SHOP_CURRENCY}", "--", sys.executable, str(script)]
    ended = CliRunner().invoke(cli, command, env={"BATCHYARD_RECIPES": str(folder)})
    assert ended.exit_code == 0, ended.output
    assert "shop_price  retriable" in ended.output and "shop_order  once" in ended.output
    file = folder / "shop.mcp.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"seconds": 240}))
    (folder / "stuck.mcp.json").write_text(json.dumps(json.loads(file.read_text()) | {"seconds": 3}))
    return folder


@pytest.fixture(scope="module")
def calls(folder: Path) -> Iterator[ToolCalls]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOP_CURRENCY", "CHF")
        calls = ToolCalls(str(folder), processes=4)
        yield calls
        calls.close()


def outcomes(calls: ToolCalls, *wanted: Call) -> list[Called]:
    done: queue.Queue[tuple[int, Called]] = queue.Queue()
    for index, call in enumerate(wanted):
        key = f"{call.tool}-{call.arguments}"
        calls.submit("job", key, call, is_retriable=False, done=lambda outcome, index=index: done.put((index, outcome)))
    return [outcome for _, outcome in sorted((done.get(timeout=360) for _ in wanted), key=lambda pair: pair[0])]


def test_the_file_holds_what_the_server_said_and_its_tools_are_in_the_catalogue(folder: Path) -> None:
    catalogue = registry.load(str(folder))
    price = catalogue.tool("shop_price")
    assert (price.description, price.mode, price.seconds) == ("The price of a fruit.", "retriable", 240)
    assert price.parameters["required"] == ["fruit"]
    assert catalogue.place(price) == "shop.mcp.json"
    assert isinstance(price.function, RemoteTool) and price.function.name == "price"


def test_tools_of_a_server_are_called_and_what_hangs_or_crashes_costs_its_call_alone(calls: ToolCalls) -> None:
    price, ordered, wrong, crashed, hung = outcomes(
        calls,
        Call("shop_price", fruit="apple", pieces=2),
        *(Call("shop_order", fruit=fruit) for fruit in ("apple", "mango", "crash")),
        Call("stuck_order", fruit="hang"),
    )
    assert price.value == {"price": 6, "currency": "CHF"}
    assert ordered.value in ("ordered", {"result": "ordered"})
    assert wrong.error is not None and "Error executing tool order" in wrong.error["message"]
    assert crashed.error is not None and crashed.error["code"] == "tool_error"
    assert hung.error is not None and hung.error["code"] == "tool_timeout"


def test_a_server_at_a_url_is_asked_and_called(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port, descriptor = bound.getsockname()[1], bound.fileno()
        command = [sys.executable, str(script), str(descriptor)]
        serving = subprocess.Popen(command, stderr=subprocess.DEVNULL, pass_fds=[descriptor])
    try:
        until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
        server = McpServer(url=f"http://127.0.0.1:{port}/mcp", headers={"X-Key": "${NOTHING}"})
        tools = asyncio.run(mcp_servers.asked(server))
        assert [tool.name for tool in tools] == ["price", "order"]
        tool = RemoteTool(server, "price", tmp_path)
        assert asyncio.run(tool(idempotency_key="key", fruit="apple"))["price"] == 3
    finally:
        serving.kill()
        serving.wait()


def test_a_server_that_does_not_answer_is_named_with_its_reason() -> None:
    for server in (McpServer(url="http://127.0.0.1:9/mcp"), McpServer(command="/there/is/no/server")):
        with pytest.raises(ConfigurationError, match=r"the MCP server .* does not answer: "):
            asyncio.run(mcp_servers.asked(server))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "shop.mcp.json: the file: "),
        ('{"tools": []}', "a server has either a `command` or a `url`"),
        ('{"command": "x", "comand": "y"}', "shop.mcp.json: comand: "),
        ('{"command": "x", "tools": [{"name": "a b", "parameters": {}}]}', "'shop_a b' cannot be the name of a tool"),
        ('{"command": "x", "tools": [{"name": "a", "parameters": {"type": 3}}]}', "the parameters of tool 'shop_a'"),
    ],
)
def test_a_file_that_is_wrong_stops_the_start_with_its_name(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "shop.mcp.json").write_text(content)
    with pytest.raises(ConfigurationError) as raised:
        registry.load(str(tmp_path))
    assert message in raised.value.message


ODD = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("odd")
NAMES = ["repo.issues.list", "repo_issues_list", "repo/issues/list", "a" * 70 + "1", "a" * 70 + "2", "plain"]
for name in NAMES:
    server.add_tool(lambda name=name: name, name=name, description=name)
server.run()
"""


def add(folder: Path, name: str, script: Path) -> Result:
    command = ["tool", "add", name, "--", sys.executable, str(script)]
    return CliRunner().invoke(cli, command, env={"BATCHYARD_RECIPES": str(folder)})


def test_names_that_apis_of_models_refuse_are_replaced_once_each(tmp_path: Path) -> None:
    script, folder = tmp_path / "server.py", tmp_path / "recipes"
    script.write_text(ODD)
    folder.mkdir()
    added = add(folder, "dots", script)
    assert added.exit_code == 0, added.output
    tools = registry.load(str(folder)).tools
    assert len(tools) == 6 and "dots_plain" in tools and "dots_repo_issues_list" in tools
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in tools)
    own = {name: tool.function for name, tool in tools.items() if isinstance(tool.function, RemoteTool)}
    assert {tool.name for tool in own.values()} >= {"repo.issues.list", "repo/issues/list", "a" * 70 + "1"}
    renamed = next(name for name, tool in own.items() if tool.name == "repo.issues.list")
    assert f"Renamed: repo.issues.list is {renamed}" in added.output and "plain is" not in added.output
    assert "repo.issues.list" in str(asyncio.run(own[renamed](idempotency_key="key")))


@pytest.mark.parametrize("name", ["a/b", "../a", ".a", "a b", "1a", ""])
def test_a_server_is_not_named_as_no_tool_may_be(tmp_path: Path, name: str) -> None:
    refused = add(tmp_path, name, tmp_path / "none.py")
    assert refused.exit_code == 2 and "letters, digits" in refused.output and not [*tmp_path.iterdir()]


def test_a_file_that_no_stack_would_start_with_is_not_written(tmp_path: Path) -> None:
    script, folder = tmp_path / "server.py", tmp_path / "recipes"
    script.write_text(SERVER)
    folder.mkdir()
    taken = 'from batchyard.recipes import tool\n\n@tool("shop_price")\ndef price() -> int:\n    return 1\n'
    (folder / "own.py").write_text(taken)
    refused = add(folder, "shop", script)
    assert refused.exit_code != 0 and "shop_price" in str(refused.exception)
    assert registry.load(str(folder)).tools.keys() == {"shop_price"}
