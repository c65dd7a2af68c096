"""The gateway's server: one address for live requests and for all else.

python -m webapp.gateway.server --host=0.0.0.0 --port=8000 --web=http://web:8001
"""

from __future__ import annotations

import argparse
import asyncio
import gc

from aiohttp import web

from batchyard import logs, settings
from batchyard.endpoints import live_wire
from batchyard.endpoints.catalog import PATHS
from batchyard.errors import ConfigurationError
from batchyard.telemetry import spans
from tasks.context import AppContext, build
from webapp.gateway import cors
from webapp.gateway.live import LiveRequests
from webapp.gateway.proxy import WebApp

END_SECONDS = 3.0
"""Streams have so long to end when the gateway is stopped: less than `batchyard up` (5 s) and Docker (10 s) wait."""
BACKLOG = 1024


def create_app(context: AppContext, web_url: str) -> web.Application:
    """Return the application. `web_url`: where the web app is (see WebApp)."""
    live = LiveRequests(context)

    origins = context.settings.cors_origin_list

    async def answer(request: web.Request) -> web.StreamResponse:
        if (allowance := cors.preflight(request, origins)) is not None:
            return allowance
        if request.method == "POST" and request.path in PATHS:
            return await live.answer(request)
        return await request.app[_WEB].answer(request)

    async def start(app: web.Application) -> None:
        app[_WEB] = WebApp(web_url, live.answer_for)
        await live.start()

    async def stop(app: web.Application) -> None:
        await live.stop()
        await app[_WEB].close()
        await asyncio.to_thread(spans.flush)

    app = web.Application(client_max_size=context.settings.max_line_bytes)
    app.router.add_route("*", r"/{path:[\s\S]*}", answer)  # a path may have line feeds, too
    if origins:
        app.on_response_prepare.append(cors.marks(origins))
    app.on_startup.append(start)
    app.on_cleanup.append(stop)
    return app


_WEB = web.AppKey("web", WebApp)


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m webapp.gateway.server", description="Serve the gateway.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, required=True, help="port to listen on")
    parser.add_argument("--web", required=True, help="the web app: http://host:port, or unix:/path of its socket")
    options = parser.parse_args()
    try:
        configuration = settings.load()
        logs.configure(configuration.log_level)
        spans.prepare()
        app = create_app(build(configuration), options.web)
    except ConfigurationError as error:
        parser.exit(2, f"batchyard: {error.message}\n")
    live_wire.allow_connections()  # a request has two connections
    gc.collect()
    gc.freeze()  # what exists now stays: a full collection would stop every stream
    web.run_app(
        app,
        host=options.host,
        port=options.port,
        backlog=BACKLOG,
        shutdown_timeout=END_SECONDS,
        handler_cancellation=True,  # a client that goes away ends its request
        access_log=None,
        keepalive_timeout=75.0,
        print=lambda *_: None,
    )


if __name__ == "__main__":
    main()
