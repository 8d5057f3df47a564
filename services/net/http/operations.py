"""The operations endpoint of every process: readiness, liveness and metrics."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Literal

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from services.errors import CarillonError
from services.net.http.connections import OPERATIONS_LIMITS, HttpConnections, pages_limits
from services.net.http.server import Asgi, HttpListener
from services.net.sockets import hard_file_limit
from services.process.clock import SteadyClock
from services.process.logs import logger
from services.process.metrics import READY

_JSON = "application/json"
HEALTH_PATHS = ("/healthz", "/livez")
PATHS = (*HEALTH_PATHS, "/metrics")
METRICS_PORT = 8081
"""Port of the metrics of a process that serves pages, unless CARILLON_METRICS_PORT names another one."""

NAME = "the operations endpoint (CARILLON_CONSOLE_PORT)"
_METRICS_NAME = "the metrics (CARILLON_METRICS_PORT)"

Stage = Literal["starting", "ready", "stopping"]


class Operations:
    """Service that answers GET /healthz, /livez and /metrics while the process starts, runs and stops.

    Where its port has pages too, /metrics has a port of its own, which `metrics_listener` serves: people reach the
    pages through proxies, whose rules for paths can be evaded, as by `/%6detrics`.

    `problems` returns what is wrong with the process, in words, by the name of the part. With problems the process is
    not ready, unless `shared_problems` has all of their names: no other process would do better. `metrics` returns the
    text of the metrics; None: those of this process alone. `pages` answers all other paths once the process is ready.
    Where another process serves the pages, both have the listening socket `shared`, and this one answers only while the
    other is away (see `accept`).
    """

    name = "operations"

    def __init__(
        self,
        host: str,
        port: int,
        problems: Callable[[], Mapping[str, str]] = dict,
        shared_problems: Callable[[], Collection[str]] = tuple,
        metrics: Callable[[], Awaitable[bytes]] | None = None,
        pages: Asgi | None = None,
        shared: socket.socket | None = None,
    ) -> None:
        self._stage: Stage = "starting"
        self._is_shared = shared is not None
        self._metrics = metrics
        self._problems = problems
        self._shared_problems = shared_problems
        self._pages = pages
        limits = pages_limits(hard_file_limit()) if pages else OPERATIONS_LIMITS
        connections = HttpConnections("console" if pages else "operations", limits, SteadyClock())
        self._listener = HttpListener(NAME, self.application, host, port, connections, shared)

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def stage(self) -> Stage:
        return self._stage

    def set_ready(self) -> None:
        self._stage = "ready"

    def accept(self, is_accepting: bool) -> None:
        """Accept new connections, or leave them to the process that serves the pages at the same socket."""
        self._listener.accept(is_accepting)

    def set_stopping(self) -> None:
        """Answer from now on that the process is not ready, so that load balancers take it out."""
        self._stage = "stopping"

    async def run(self, ready: asyncio.Event) -> None:
        await self._listener.run(ready)

    async def application(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI application of the endpoint: HEALTH_PATHS and the pages, or else PATHS."""
        if scope["type"] != "http":
            return
        if self._is_shared:
            # The other process answers the next request, if it is back by then.
            send = _closing(send)
        has_pages = self._is_shared or self._pages is not None
        if not has_pages or scope["path"] in HEALTH_PATHS:
            await answer(scope, send, self.answer)
        elif self._pages is None:
            problems = {} if self._stage == "starting" else {"console": "its process is starting"}
            await _send(send, scope["method"], *readiness(self._stage, problems))
        elif self._stage != "starting":
            await self._pages(scope, receive, send)
        else:
            await _send(send, scope["method"], *readiness(self._stage, problems={}))

    def metrics_listener(self, host: str, port: int | None) -> "MetricsListener":
        """Return the service that answers all of PATHS at a port of its own; `port`: CARILLON_METRICS_PORT."""

        async def application(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                await answer(scope, send, self.answer)

        return MetricsListener(application, host, port)

    async def answer(self, path: str) -> tuple[int, str, bytes]:
        """Return the status, media type and body for one of PATHS."""
        match path:
            case "/metrics":
                READY.set(self._stage == "ready" and not self._problems())
                return 200, CONTENT_TYPE_LATEST, await self._metrics() if self._metrics else generate_latest()
            case "/livez":
                return 200, _JSON, b'{"status":"alive"}'
            case _:
                return readiness(self._stage, self._problems(), self._shared_problems())


class MetricsListener:
    """Service that serves the metrics of a process with pages. Without a port it uses METRICS_PORT, if free."""

    name = "metrics"

    def __init__(self, application: Asgi, host: str, port: int | None) -> None:
        self._is_default = port is None
        connections = HttpConnections("operations", OPERATIONS_LIMITS, SteadyClock())
        self._listener = HttpListener(
            _METRICS_NAME, application, host, METRICS_PORT if port is None else port, connections
        )

    @property
    def port(self) -> int:
        return self._listener.port

    async def run(self, ready: asyncio.Event) -> None:
        """Serve the metrics, or nothing where the default port is in use.

        CarillonError: the port in the settings is in use.
        """
        try:
            await self._listener.run(ready)
        except CarillonError as error:
            if not self._is_default:
                raise
            logger.warning("the metrics are not served; set CARILLON_METRICS_PORT", error=str(error))
            ready.set()
            await asyncio.Event().wait()


def _closing(send: Any) -> Any:
    """Return an ASGI `send` that ends the connection after the answer."""

    async def closing(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"].append((b"connection", b"close"))
        await send(message)

    return closing


def readiness(stage: Stage, problems: Mapping[str, str], shared: Collection[str] = ()) -> tuple[int, str, bytes]:
    """Return status, media type and body of /healthz: 200 if the stage is `ready` and no problem is this process's own,
    else 503. The body of a `ready` stage names the problems. `shared`: those that every process has, such as a log
    that is away.
    """
    if stage != "ready":
        return 503, _JSON, b'{"status":"%s"}' % stage.encode()
    is_ready = problems.keys() <= set(shared)
    body: dict[str, object] = {"status": "ready" if is_ready else "not ready"}
    if problems:
        body["problems"] = dict(problems)
    return 200 if is_ready else 503, _JSON, json.dumps(body, separators=(",", ":")).encode()


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
