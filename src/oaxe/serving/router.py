"""Which function answers a request, and what is answered if it refuses or fails."""

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from oaxe.serving.errors import RefusedError, refusal

Endpoint = Callable[[Request], Awaitable[Response]]


class Router:
    """An ASGI application. Starlette's own has middleware that took a tenth of a request's time.

    Args:
        endpoints: by path and method; HEAD is answered by that of GET.
    """

    def __init__(self, endpoints: Mapping[str, Mapping[str, Endpoint]]) -> None:
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            response = await self._endpoint(request)(request)
        except RefusedError as error:
            response = refusal(error)
        except Exception:  # a bug: nothing about its inside
            message = "an error of the server; its log has a traceback"
            await JSONResponse({"error": message}, 500)(scope, receive, send)
            raise
        await response(scope, receive, send)

    def _endpoint(self, request: Request) -> Endpoint:
        methods = self._endpoints.get(request.scope["path"])
        if methods is None:
            raise RefusedError(404, "there is nothing here; GET /docs lists what there is")
        method = "GET" if request.method == "HEAD" else request.method
        if method not in methods:
            allowed = ", ".join([*methods, *(["HEAD"] if "GET" in methods else [])])
            message = f"{request.method} is not allowed here; use {allowed}"
            raise RefusedError(405, message, Allow=allowed)
        return methods[method]
