"""The operations endpoint of every process: readiness and metrics."""

import asyncio
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from services.runtime.http.connections import HttpConnections
from services.runtime.http.limits import CONSOLE_LIMITS
from services.runtime.http.listener import HttpListener
from services.runtime.process.clock import SystemClock


class Operations:
    """Service that answers GET /healthz and GET /metrics while the process starts and runs; see `set_ready`."""

    name = "operations"

    def __init__(self, host: str, port: int) -> None:
        self._ready = False
        connections = HttpConnections("console", CONSOLE_LIMITS, SystemClock())
        self._listener = HttpListener("the console", self.application, host, port, connections)

    @property
    def port(self) -> int:
        return self._listener.port

    def set_ready(self) -> None:
        self._ready = True

    async def run(self, ready: asyncio.Event) -> None:
        await self._listener.run(ready)

    async def application(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI application: 200 {"status":"ready"} or 503 {"status":"starting"}, metrics, 404 for all else."""
        if scope["type"] != "http":
            return
        status, content_type, body = self._answer(scope["method"], scope["path"])
        headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
        if status == 405:
            headers.append((b"allow", b"GET, HEAD"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _answer(self, method: str, path: str) -> tuple[int, str, bytes]:
        if path not in ("/healthz", "/metrics"):
            return 404, "application/json", b'{"status":"not found"}'
        if method not in ("GET", "HEAD"):
            return 405, "application/json", b'{"status":"only GET"}'
        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST, generate_latest()
        if not self._ready:
            return 503, "application/json", b'{"status":"starting"}'
        return 200, "application/json", b'{"status":"ready"}'
