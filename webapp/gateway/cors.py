"""Pages of other origins, whose browsers ask before they send a request (CORS)."""

from aiohttp import web

METHODS = "GET, POST, PATCH, DELETE, OPTIONS"
EXPOSED = "x-request-id, request-id, retry-after"
_AGE_SECONDS = "600"


def allowed(request: web.Request, origins: list[str]) -> dict[str, str]:
    """Return the headers that let the page of a request read the answer; none for another origin."""
    origin = request.headers.get("Origin")
    if not origin or not {"*", origin} & {*origins}:
        return {}
    return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": EXPOSED, "Vary": "Origin"}


def preflight(request: web.Request, origins: list[str]) -> web.Response | None:
    """Return the answer to a browser that asks what it may send; None for any other request."""
    asks = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
    if not asks or not allowed(request, origins):
        return None
    headers = {"Access-Control-Allow-Methods": METHODS, "Access-Control-Max-Age": _AGE_SECONDS}
    if wanted := request.headers.get("Access-Control-Request-Headers"):
        headers["Access-Control-Allow-Headers"] = wanted
    return web.Response(status=204, headers=headers)
