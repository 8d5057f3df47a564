"""The operations endpoint of every process: readiness, liveness and metrics."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from services.runtime.http.connections import HttpConnections
from services.runtime.http.hand_over import HandOver
from services.runtime.http.limits import OPERATIONS_LIMITS, pages_limits
from services.runtime.http.listener import Asgi, HttpListener
from services.runtime.process.clock import SteadyClock
from services.runtime.process.metrics import READY
from services.runtime.sockets.open_files import hard_file_limit

_JSON = "application/json"
PATHS = ("/healthz", "/livez", "/metrics")
_NAME = "the operations endpoint (CARILLON_CONSOLE_PORT)"

Stage = Literal["starting", "ready", "stopping"]


class Operations:
    """Service that answers GET /healthz, /livez and /metrics while the process starts, runs and stops.

    `problems` returns what keeps the process from being ready, in words, by the name of the part. `metrics` returns the
    text of the metrics, unless they are those of this process alone. `pages` answers all other paths once the process
    is ready; or connections that ask for them are given to the process behind `hand_over`.
    """

    name = "operations"

    def __init__(
        self,
        host: str,
        port: int,
        problems: Callable[[], Mapping[str, str]] = dict,
        metrics: Callable[[], Awaitable[bytes]] | None = None,
        pages: Asgi | None = None,
        hand_over: HandOver | None = None,
    ) -> None:
        self._stage: Stage = "starting"
        self._hand_over = hand_over
        self._metrics = metrics
        self._problems = problems
        self._pages = pages
        limits = pages_limits(hard_file_limit()) if pages else OPERATIONS_LIMITS
        connections = HttpConnections("console" if pages else "operations", limits, SteadyClock())
        self._listener = HttpListener(_NAME, self.application, host, port, connections, hand_over)

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def stage(self) -> Stage:
        return self._stage

    def set_ready(self) -> None:
        self._stage = "ready"
        if self._hand_over is not None:
            self._hand_over.is_open = True

    def set_stopping(self) -> None:
        """Answer from now on that the process is not ready, so that load balancers take it out."""
        self._stage = "stopping"

    async def run(self, ready: asyncio.Event) -> None:
        await self._listener.run(ready)

    async def application(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI application of the endpoint: PATHS, and the pages."""
        if scope["type"] != "http":
            return
        if self._hand_over is not None:
            # The next request of the connection may be the other process's.
            send = _closing(send)
        if scope["path"] in PATHS or (self._pages is None and self._hand_over is None):
            await answer(scope, send, self.answer)
        elif self._pages is None:
            problems = {} if self._stage == "starting" else {"console": "its process is starting"}
            await _send(send, scope["method"], *readiness(self._stage, problems))
        elif self._stage != "starting":
            await self._pages(scope, receive, send)
        else:
            await _send(send, scope["method"], *readiness(self._stage, problems={}))

    async def answer(self, path: str) -> tuple[int, str, bytes]:
        """Return the status, media type and body for one of PATHS."""
        match path:
            case "/metrics":
                READY.set(self._stage == "ready" and not self._problems())
                return 200, CONTENT_TYPE_LATEST, await self._metrics() if self._metrics else generate_latest()
            case "/livez":
                return 200, _JSON, b'{"status":"alive"}'
            case _:
                return readiness(self._stage, self._problems())


def is_operation(head: bytes) -> bool:
    """Return whether a request that begins with these bytes asks for one of PATHS."""
    method, _, rest = head.partition(b" ")
    return method in (b"GET", b"HEAD") and rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1") in PATHS


def _closing(send: Any) -> Any:
    """Return an ASGI `send` after whose answer the connection ends."""

    async def closing(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"].append((b"connection", b"close"))
        await send(message)

    return closing


def readiness(stage: Stage, problems: Mapping[str, str]) -> tuple[int, str, bytes]:
    """Return the answer of /healthz: 200, or 503 with what is wrong."""
    if stage != "ready":
        return 503, _JSON, b'{"status":"%s"}' % stage.encode()
    if problems:
        body = {"status": "not ready", "problems": dict(problems)}
        return 503, _JSON, json.dumps(body, separators=(",", ":")).encode()
    return 200, _JSON, b'{"status":"ready"}'


async def answer(scope: Any, send: Any, answer_of: Any) -> None:
    """Answer a request to the endpoint; 404 for other paths than PATHS, 405 for other methods than GET and HEAD."""
    status, content_type, body = 404, _JSON, b'{"status":"not found"}'
    if scope["path"] in PATHS:
        if scope["method"] in ("GET", "HEAD"):
            status, content_type, body = await answer_of(scope["path"])
        else:
            status, body = 405, b'{"status":"only GET"}'
    await _send(send, scope["method"], status, content_type, body)


async def _send(send: Any, method: str, status: int, content_type: str, body: bytes) -> None:
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
    if status == 405:
        headers.append((b"allow", b"GET, HEAD"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})
