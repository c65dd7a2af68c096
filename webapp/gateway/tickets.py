"""Tickets: live requests that the web app hands to the gateway in place of a response.

A session opens pages and never the API. So the web app checks session and form of a page, and answers with a ticket,
which says in whose name the gateway sends which request to a model. Only the web app's own responses are read as such.
"""

import html
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web
from pydantic import BaseModel

from batchyard import durations, json_lines
from batchyard.endpoints import responses
from store.keys import Principal

HEADER = "X-Batchyard-Ticket"
"""A response with this header is a ticket, as JSON."""
PROTECTION = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}
"""What browsers are told of each response that does not say otherwise, as pages do (webapp.pages)."""


class Ticket(BaseModel):
    """A live request in the name of a principal. `page` is the HTML before and after the answer, if any."""

    principal: Principal
    endpoint: str
    body: dict[str, Any]
    page: tuple[str, str] | None = None


async def protect(_: web.Request, response: web.StreamResponse) -> None:
    """Add the headers that protect a response in a browser, about to be sent, unless it has them."""
    for name, value in PROTECTION.items():
        response.headers.setdefault(name, value)


Answer = Callable[[web.Request, str, Principal, bytes], Awaitable[web.StreamResponse]]
"""Answers a live request to an endpoint, in somebody's name, with this body."""


async def redeem(request: web.Request, data: bytes, headers: Mapping[str, str], answer: Answer) -> web.StreamResponse:
    """Answer a request to which the web app has responded with a ticket and these headers."""
    ticket = Ticket.model_validate_json(data)
    began = time.monotonic()
    response = await answer(request, ticket.endpoint, ticket.principal, json_lines.dumps(ticket.body))
    if ticket.page is None or not isinstance(response, web.Response):
        return response
    before, after = ticket.page
    shown = _shown(response.status, bytes(response.body or b""), time.monotonic() - began)  # type: ignore[arg-type]
    return web.Response(
        status=response.status,
        text=before + shown + after,
        content_type="text/html",
        charset="utf-8",
        headers={name: headers[name] for name in PROTECTION if name in headers},
    )


def _shown(status: int, data: bytes, seconds: float) -> str:
    """Return an answer, or why there is none, as HTML."""
    body = json_lines.loads(data)
    if status != 200:
        message = str(responses.error(body).get("message", "There is no answer."))
        return f'<p class="problem" role="alert"><bdi>{html.escape(message)}</bdi></p>'
    output, tokens = responses.output(body), responses.usage(body).output_tokens
    figures = [f"{tokens or 0:,} tokens in {durations.brief(seconds)}"]
    figures += [f"{tokens / seconds:.1f} tokens a second"] if tokens and seconds else []
    figures += ["cut at the most tokens"] if output.finish_reason == "length" else []
    text = output.text or (output.no_text.message if output.no_text else "")
    return (
        f'<pre dir="auto" class="text" tabindex="0" role="group" aria-label="answer">{html.escape(text)}</pre>'
        f'<p class="note">{html.escape(", ".join(figures))}</p>'
    )
