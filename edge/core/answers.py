"""What app servers are answered: `{"result": ..., "desc": ...}`, errors included, always in the same media type."""

import time
from typing import Any, TypeAlias

import falcon
import falcon.asgi
import msgspec
from falcon.asgi import Request, Response
from prometheus_client import Counter, Histogram

from services.runtime.errors import CarillonError
from services.runtime.process.logs import logger
from services.runtime.process.metrics import REQUEST_SECONDS, REQUESTS

MEDIA_TYPE = "application/json;charset=utf-8"
DoorApp: TypeAlias = "falcon.asgi.App[Request, Response]"
_encode = msgspec.json.Encoder().encode
_TRANSPORT = {404: "no such path", 405: "method not allowed"}


def door_app(door: str) -> DoorApp:
    """A Falcon app that answers every error in the product's shape and counts its requests; add the routes."""
    app = falcon.asgi.App(media_type=MEDIA_TYPE, middleware=[_Measured(door)])
    app.set_error_serializer(_transport_error)
    app.add_error_handler(Exception, _failed)
    app.add_error_handler(CarillonError, _refused)
    return app


def answer(response: Response, content: dict[str, Any]) -> None:
    """Answer with HTTP 200; `content` holds `result`."""
    response.data = _encode(content)
    response.context.result = content["result"]


def error_content(error: CarillonError) -> dict[str, Any]:
    """The answer to an error; of the service's own troubles nothing but that there was one."""
    match error.result:
        case 400:
            return {"result": 400, "desc": f"input error: {error}"}
        case 401:
            return {"result": 401, "desc": "sign not correct"}
        case _:
            return {"result": 500, "desc": "internal error"}


async def _refused(request: Request, response: Response, error: CarillonError, params: dict[str, Any]) -> None:
    if error.result >= 500:
        logger.error("a request failed", path=request.uri_template, error=f"{type(error).__name__}: {error}")
    answer(response, error_content(error))


async def _failed(request: Request, response: Response, error: Exception, params: dict[str, Any]) -> None:
    logger.error("a request failed", path=request.uri_template, exc_info=error)
    answer(response, error_content(CarillonError()))


def _transport_error(request: Request, response: Response, error: falcon.HTTPError) -> None:
    status = error.status_code
    response.data = _encode({"result": status, "desc": error.description or _TRANSPORT.get(status, error.title)})
    response.content_type = MEDIA_TYPE
    response.context.result = status


class _Measured:
    """Counts and times every request, by path template and result."""

    def __init__(self, door: str) -> None:
        self._door = door
        self._known: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    async def process_request(self, request: Request, response: Response) -> None:
        request.context.started = time.perf_counter()
        response.context.result = 0

    async def process_response(self, request: Request, response: Response, resource: object, succeeded: bool) -> None:
        seconds = time.perf_counter() - request.context.started
        count, duration = self._metrics(request.uri_template or "other", response.context.result)
        count.inc()
        duration.observe(seconds)

    def _metrics(self, path: str, result: int) -> tuple[Counter, Histogram]:
        """Looking labels up costs more than counting."""
        found = self._known.get((path, result))
        if found is None:
            pair = REQUESTS.labels(self._door, path, result), REQUEST_SECONDS.labels(self._door, path)
            found = self._known[path, result] = pair
        return found
