"""Answers that are no translations: always JSON, with the reason."""

import math

from starlette.exceptions import HTTPException
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


def refusal(error: RefusedError) -> JSONResponse:
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)
