"""Answers that are no translations: always JSON, with the reason."""

import math

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

RETRY_SECONDS = 1  # at least


class RefusedError(HTTPException):
    """A request that cannot be answered, with the reason for the client."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        super().__init__(status, message, given)


def busy(message: str, seconds: float = 0) -> RefusedError:
    """Too much to do: try again in so many seconds."""
    return RefusedError(503, message, Retry_After=str(max(RETRY_SECONDS, math.ceil(seconds))))


async def answer_error(request: Request, error: Exception) -> JSONResponse:
    """What was refused; for any other exception, a bug, nothing about its inside."""
    if not isinstance(error, HTTPException):
        message = "an error of the server; its log has a traceback"
        return JSONResponse({"error": message}, 500)
    message = error.detail
    if isinstance(error, RefusedError):
        pass
    elif error.status_code == 404:
        message = "there is nothing here; GET /docs lists what there is"
    elif error.status_code == 405:
        message = f"{request.method} is not allowed here; use {(error.headers or {}).get('Allow')}"
    return JSONResponse({"error": message}, error.status_code, error.headers)
