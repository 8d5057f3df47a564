"""Answers to app servers: `{"result": ..., "desc": ...}`, errors included, always in the same media type."""

import time
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias

import falcon
import falcon.asgi
import msgspec
from falcon.asgi import Request, Response
from prometheus_client import Counter, Histogram

from edge.core.parsing.fields import Count, MessageId, Success, Text, described
from services.errors import CarillonError, Field, RetryLaterError
from services.process import push_traces
from services.process.logs import logger
from services.process.metrics import REQUEST_SECONDS, REQUESTS

MEDIA_TYPE = "application/json;charset=utf-8"
JsonApi: TypeAlias = "falcon.asgi.App[Request, Response]"
Content = dict[str, Any]
_encode = msgspec.json.Encoder().encode
TOKEN_NOT_FOUND = "token not found"  # noqa: S105
_LONGEST_DESC = 500
_RECORDED = frozenset({"at", "by", "appkey", "kinds", "part"})
"""The texts among the fields of errors that are recorded with a refusal: names, and no values of the request."""

_TRANSPORT = {404: "no such path", 405: "method not allowed"}


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the answers that documents show; every one has `result`, 0 for success."""


class Done(Reply, frozen=True):
    result: Success
    desc: Text


class FailedToken(Reply, frozen=True):
    msgid: Annotated[MessageId, described("The message id reserved for this entry.")]
    result: Annotated[Literal[401], described("Always 401.")]
    pos: Annotated[Count, described("Position in the list, from 0.")]
    token: Annotated[str, described("The token; on iOS in lower case.")]
    desc: Annotated[str, described(TOKEN_NOT_FOUND)]


def failed_token(msgid: int, position: int, token: str) -> FailedToken:
    return FailedToken(msgid=msgid, result=401, pos=position, token=token, desc=TOKEN_NOT_FOUND)


class Refusal(Reply, frozen=True):
    """400: a parameter is wrong, `desc` says which. 401: the sign is wrong. 500: a fault of the service."""

    result: Annotated[Literal[400, 401, 500], described("The kind of error.")]
    desc: Annotated[str, described("The error in words; for 400 the first field that is wrong.")]


class TransportError(Reply, frozen=True):
    """The request was not read, or cannot be answered at present (503); `result` is the HTTP status."""

    result: Annotated[int, described("The HTTP status.")]
    desc: Annotated[str, described("The error in words.")]


class Denial(Reply, frozen=True):
    """The operator does not allow the request, which is the HTTP status too; nothing was done."""

    result: Annotated[
        Literal[403, 429],
        described("403: the app is paused, or the address not allowed. 429: over a quota; see Retry-After."),
    ]
    desc: Annotated[str, described("The reason in words.")]


NoteRefusal = Callable[[Request, CarillonError], None]
"""Notes that a request is answered with an error."""


def json_api(interface: str, note_refusal: NoteRefusal) -> JsonApi:
    """Return a Falcon app without routes that answers errors as JSON and counts requests under `interface`."""

    async def refused(request: Request, response: Response, error: CarillonError, params: dict[str, Any]) -> None:
        note_refusal(request, error)
        await _refused(request, response, error, params)

    app = falcon.asgi.App(media_type=MEDIA_TYPE, middleware=[_RequestMetrics(interface)])
    app.set_error_serializer(_transport_error)
    app.add_error_handler(Exception, _failed)
    app.add_error_handler(CarillonError, refused)
    return app


def answer(response: Response, reply: Any) -> None:
    """Answer with HTTP 200 and the reply, a Reply or a dict with `result`."""
    response.data = _encode(reply)
    response.context.result = reply["result"] if isinstance(reply, dict) else reply.result


def set_status(response: Response, error: CarillonError) -> None:
    """Set the HTTP status of an error: its result for 403, 429 and 503, otherwise 200."""
    if error.result in (403, 429, 503):
        response.status = falcon.code_to_http_status(error.result)
    if isinstance(error, RetryLaterError):
        response.set_header("Retry-After", str(error.retry_after_s))


def refusal(error: CarillonError) -> Refusal | Denial | TransportError:
    """Return the answer to an error. The details of the service's own faults (500) go to its log only."""
    match error.result:
        case 400:
            return Refusal(result=400, desc=f"input error: {_shortened(str(error))}")
        case 401:
            return Refusal(result=401, desc="sign not correct")
        case 403 | 429:
            return Denial(result=error.result, desc=str(error))
        case 503:
            return TransportError(result=503, desc=str(error))
        case _:
            return Refusal(result=500, desc="internal error")


def refusal_words(error: CarillonError) -> str:
    """Return the words of an answer that are recorded: without values of the request, which may be about a person."""
    if error.code is not None:
        fields = {name: _recorded(name, value) for name, value in error.fields.items()}
        return _shortened(error.code.value.format_map(fields))
    return "" if error.result == 400 else _shortened(refusal(error).desc)


def _recorded(name: str, value: Field) -> Field:
    return value if isinstance(value, int) or name in _RECORDED else "…"


def _shortened(text: str) -> str:
    """Leave out the middle of a long text: it may quote a field's name from the request, of any length."""
    half = _LONGEST_DESC // 2
    return text if len(text) <= _LONGEST_DESC else f"{text[:half]} … {text[-half:]}"


async def _refused(request: Request, response: Response, error: CarillonError, params: dict[str, Any]) -> None:
    if error.result >= 500:
        logger.error("a request failed", path=request.uri_template, error=f"{type(error).__name__}: {error}")
    set_status(response, error)
    answer(response, refusal(error))


async def _failed(request: Request, response: Response, error: Exception, params: dict[str, Any]) -> None:
    logger.error("a request failed", path=request.uri_template, exc_info=error)
    answer(response, refusal(CarillonError()))


def _transport_error(request: Request, response: Response, error: falcon.HTTPError) -> None:
    status = error.status_code
    response.data = _encode(
        TransportError(result=status, desc=error.description or _TRANSPORT.get(status, str(error.title)))
    )
    response.content_type = MEDIA_TYPE
    response.context.result = status


class _RequestMetrics:
    """Middleware that counts and times every request by path template and result."""

    def __init__(self, interface: str) -> None:
        self._interface = interface
        self._by_path_and_result: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    async def process_request(self, request: Request, response: Response) -> None:
        request.context.started = time.perf_counter()
        request.context.span = push_traces.begin_request()
        response.context.result = 0

    async def process_response(self, request: Request, response: Response, resource: object, succeeded: bool) -> None:
        seconds = time.perf_counter() - request.context.started
        count, duration = self._metrics(request.uri_template or "other", response.context.result)
        count.inc()
        duration.observe(seconds)
        if request.context.span is not None:
            name = f"{request.method} {request.uri_template or 'other'}"
            attributes = {"carillon.interface": self._interface, "carillon.result": response.context.result}
            push_traces.end_request(request.context.span, name, attributes)

    def _metrics(self, path: str, result: int) -> tuple[Counter, Histogram]:
        """Return the labelled metrics from a cache: looking labels up costs more than counting."""
        found = self._by_path_and_result.get((path, result))
        if found is None:
            pair = REQUESTS.labels(self._interface, path, result), REQUEST_SECONDS.labels(self._interface, path)
            found = self._by_path_and_result[path, result] = pair
        return found
