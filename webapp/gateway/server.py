"""The gateway's server: one address for live requests and for all else.

python -m webapp.gateway.server --host=0.0.0.0 --port=8000 --web=http://web:8001
"""

import argparse
import asyncio
import gc
import logging
import re
import secrets
import signal

from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from batchyard import logs, settings
from batchyard.endpoints import live_wire
from batchyard.endpoints.catalog import PATHS
from batchyard.errors import AuthenticationError, BatchyardError, ConfigurationError, UnavailableError
from batchyard.telemetry import spans
from tasks.context import AppContext, build
from webapp.gateway import callers, cors, errors, tickets
from webapp.gateway.bodies import BodyMemory
from webapp.gateway.callers import Callers
from webapp.gateway.connections import Connection, Connections
from webapp.gateway.live import LiveRequests
from webapp.gateway.pace import Pace
from webapp.gateway.proxy import WebApp
from webapp.wire.health import Health

END_SECONDS = 3.0
"""Streams have so long to end when the gateway is stopped: less than `batchyard up` (5 s) and Docker (10 s) wait."""
OF_KEYS = ("/v1/", "/start")
"""Paths of the API, which only keys open. Others have sessions, or somebody whom a proxy names."""

log = logging.getLogger(__name__)


def create_app(context: AppContext, web_url: str) -> web.Application:
    """Return the application. `web_url`: where the web app is (see WebApp)."""
    known, memory = Callers(context), BodyMemory(context.settings)
    live = LiveRequests(context, known, memory)

    origins = context.settings.cors_origin_list

    async def answer(request: web.Request) -> web.StreamResponse:
        if isinstance(request.protocol, Connection):
            request.protocol.has_sent = True
            if request.protocol.too_many:
                fault = {"message": "The gateway has as many connections as it may; try again, with fewer at once."}
                refusal = errors.response(request.path, 503, fault, headers={"Retry-After": "1"})
                refusal.force_close()
                return refusal
        if (allowance := cors.preflight(request, origins)) is not None:
            return allowance
        if request.path == "/healthz" and request.method in ("GET", "HEAD"):
            return web.json_response(Health().model_dump())
        if request.method == "POST" and request.path in PATHS:
            return await live.answer(request, PATHS[request.path])
        sender, with_body = await _sender(request)
        return await request.app[_WEB].answer(request, sender, with_body=with_body)

    async def _sender(request: web.Request) -> tuple[str, bool]:
        """Return whose request it is, by key or address, and whether the web app may want its body."""
        try:
            caller = await known.caller(callers.key_of(request))
        except (AuthenticationError, UnavailableError):
            return callers.address_of(request, context.settings.proxies), not request.path.startswith(OF_KEYS)
        return caller.principal.key_id, True

    async def bounded(request: web.Request) -> web.StreamResponse:
        """Answer, and send what is answered at once."""
        request = _as_meant(request)
        try:
            try:
                response = await answer(request)
            except BatchyardError as error:
                response = errors.of_error(request.path, error, headers={})
            if isinstance(response, web.Response) and not response.prepared:
                response.headers.setdefault("x-request-id", f"req_{secrets.token_hex(12)}")
                await response.prepare(request)
                await Pace(context.settings).send(request, response.write_eof(), response.content_length or 0)
        except ConnectionError as error:
            log.info("%s %s not answered to its end: %s", request.method, request.path, error)
            return web.Response()  # nobody gets it
        return response

    async def start(app: web.Application) -> None:
        app[_WEB] = WebApp(web_url, live.answer, context.settings, memory)
        await known.start()
        await live.start()

    async def stop(app: web.Application) -> None:
        await known.stop()
        await live.stop()
        await app[_WEB].close()
        await asyncio.to_thread(spans.flush)

    async def mark(request: web.Request, response: web.StreamResponse) -> None:
        """Let pages of other origins read the response, also a stream or an error."""
        response.headers.update(cors.allowed(request, origins))

    app = web.Application()
    app.router.add_route("*", r"/{path:[\s\S]*}", bounded)  # a path may have line feeds, too
    app.on_response_prepare.append(tickets.protect)
    if origins:
        app.on_response_prepare.append(mark)
    app.on_startup.append(start)
    app.on_cleanup.append(stop)
    return app


_WEB = web.AppKey("web", WebApp)
_SLASHES = re.compile("//+")


def _as_meant(request: web.Request) -> web.Request:
    """Return a request with the path and the headers that its client means.

    A base URL that ends in a slash doubles one, and some clients send the whole URL. Bytes of a header that are not
    UTF-8 are Latin-1, which HTTP had first.
    """
    path = request.rel_url.raw_path
    plain = _SLASHES.sub("/", path).rstrip("/") or "/"
    if path.startswith("/") and plain != request.raw_path.partition("?")[0]:
        query = request.rel_url.raw_query_string
        request = request.clone(rel_url=URL.build(path=plain, query_string=query, encoded=True))
    if not all(value.isascii() for value in request.headers.values()):
        request = request.clone(headers=CIMultiDict((name, _text(value)) for name, value in request.headers.items()))
    return request


def _text(value: str) -> str:
    raw = value.encode(errors="surrogateescape")  # as aiohttp has decoded it
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


class Gateway:
    def __init__(self, context: AppContext, web_url: str) -> None:
        self._connections = Connections(context.settings)
        app = create_app(context, web_url)
        # A client that goes away ends its request.
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=END_SECONDS)

    async def start(self, host: str, port: int) -> int:
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        self._listening = await asyncio.get_running_loop().create_server(
            lambda: Connection(server, self._connections), host, port, backlog=self._connections.backlog
        )
        return int(self._listening.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Listen no more, let what is answered end, and write what is to be written."""
        self._listening.close()
        await self._runner.cleanup()


async def _serve(gateway: Gateway, host: str, port: int) -> None:
    end = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end.set)
    await gateway.start(host, port)
    try:
        await end.wait()
    finally:
        await gateway.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m webapp.gateway.server", description="Serve the gateway.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, required=True, help="port to listen on")
    parser.add_argument("--web", required=True, help="the web app: http://host:port, or unix:/path of its socket")
    options = parser.parse_args()
    live_wire.allow_connections()  # a request has two connections
    try:
        configuration = settings.load()
        logs.configure(configuration.log_level)
        spans.prepare()
        gateway = Gateway(build(configuration), options.web)
    except ConfigurationError as error:
        parser.exit(2, f"batchyard: {error.message}\n")
    gc.collect()
    gc.freeze()  # what exists now stays: a full collection would stop every stream
    asyncio.run(_serve(gateway, options.host, options.port))


if __name__ == "__main__":
    main()
