"""Errors of `/console/v1`: problem details (RFC 9457) with texts that say what to do."""

from typing import Annotated

import falcon
import msgspec
from falcon.asgi import Request, Response

from edge.core.parsing.fields import described
from services.errors import (
    BusyError,
    CarillonError,
    ConflictError,
    DeadlineError,
    ForbiddenError,
    InputError,
    NotFoundError,
    PermissionDeniedError,
    RetryLaterError,
    UnavailableError,
)
from services.process.logs import logger

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 2
"""Delay after which a request that was answered with HTTP 503 should be repeated."""

_STATUS = (
    (NotFoundError, 404),
    ((PermissionDeniedError, ForbiddenError), 403),
    (ConflictError, 409),
    (InputError, 400),
    ((UnavailableError, DeadlineError, BusyError), 503),
)
_WORDS = {
    403: "the API token's role in the team does not allow this, or the team has no such app; ask for a token that may",
    404: "there is nothing at this address that the API token may see; look at /console/v1/openapi.json",
    405: "this address takes no such method; look at /console/v1/openapi.json",
    500: "something went wrong; the service's log says what",
    503: "a part of the service does not answer at present; try again in a moment, a change under the same key",
}


class Problem(msgspec.Struct, frozen=True):
    """Problem details of RFC 9457."""

    type: Annotated[str, described("Always about:blank: the status says what kind of problem it is.")]
    title: Annotated[str, described("The words of the HTTP status.")]
    status: Annotated[int, described("The HTTP status.")]
    detail: Annotated[str, described("What is wrong, and what to do.")]


class ErrorAnswers:
    """Answers the errors of calls."""

    async def of_http(self, request: Request, response: Response, error: falcon.HTTPError) -> None:
        for name, value in dict(error.headers or {}).items():
            response.set_header(name, value)
        _answer(response, error.status_code, error.description or _WORDS.get(error.status_code, error.title or ""))

    async def of_call(self, request: Request, response: Response, error: CarillonError) -> None:
        if isinstance(error, RetryLaterError):
            response.set_header("Retry-After", str(error.retry_after_s))
            _answer(response, error.result, str(error))
            return
        status = next((status for kinds, status in _STATUS if isinstance(error, kinds)), 500)
        if status == 503:
            response.set_header("Retry-After", str(RETRY_AFTER_S))
        if status >= 500:
            logger.error("a call failed", path=request.uri_template, error=f"{type(error).__name__}: {error}")
        _answer(response, status, str(error) if status < 500 else _WORDS[status])

    async def of_fault(self, request: Request, response: Response, error: Exception) -> None:
        logger.error("a call failed", path=request.uri_template, exc_info=error)
        _answer(response, 500, _WORDS[500])


def _answer(response: Response, status: int, detail: str) -> None:
    line = falcon.code_to_http_status(status)
    response.status = line
    response.content_type = MEDIA_TYPE
    response.data = msgspec.json.encode(Problem("about:blank", line.partition(" ")[2], status, detail))
