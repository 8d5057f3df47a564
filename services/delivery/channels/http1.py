"""Requests to one server of a vendor by HTTP/1.1, over connections that are kept from one to the next."""

import asyncio
import ssl
from collections.abc import Mapping
from functools import partial
from urllib.parse import urlsplit

from services.delivery.channels.health import UnreachableServices
from services.errors import UnavailableError
from services.net.http.client import MAX_ANSWER_BYTES, HttpAnswer, HttpClientConnection, IdleConnections
from services.process.clock import Clock
from services.process.logs import logger

CONNECT_S = 5.0

IDLE_S = 20.0
"""Time without a request after which a connection is closed; servers keep theirs for longer."""


class Http1Server:
    """A server over TLS. `post` takes a connection of `connect`, so that a caller may look again once it is open."""

    def __init__(
        self,
        channel: str,
        url: str,
        clock: Clock,
        authority: str | None = None,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        """`authority`: PEM text of trusted certificates, None for the system's. `channel`: its name in metrics."""
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or 443
        self._authority = parts.netloc
        self._tls = ssl.create_default_context(cadata=authority)
        self._connection = partial(HttpClientConnection, max_answer_bytes)
        self._idle = IdleConnections()
        self._sweep: asyncio.TimerHandle | None = None
        self._unreachable = UnreachableServices(channel, clock)

    async def connect(self) -> HttpClientConnection:
        """Return a connection for one request. UnavailableError: none leads to the server."""
        if (connection := self._idle.take()) is not None:
            return connection
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                connection = (await loop.create_connection(self._connection, self._host, self._port, ssl=self._tls))[1]
        except OSError as error:
            self._unreachable.failed(self._host)
            text = str(error) or type(error).__name__
            logger.warning("no connection to the push service", host=self._host, error=text)
            raise UnavailableError(f"no connection to {self._host}: {text}") from None
        self._unreachable.reached(self._host)
        return connection

    async def post(
        self, connection: HttpClientConnection, path: str, headers: Mapping[str, str], body: bytes
    ) -> HttpAnswer:
        """Post and return the answer. NoAnswerError: the request may have arrived."""
        fields = {"host": self._authority, "content-length": str(len(body)), **headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        try:
            answer = await connection.post(f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        except BaseException:
            connection.close()
            raise
        self.put_back(connection)
        return answer

    def put_back(self, connection: HttpClientConnection) -> None:
        """Keep a connection for a further request."""
        self._idle.put(connection, asyncio.get_running_loop().time())
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_S, self._close_idle)

    def close(self) -> None:
        """Close the connections that no request is on."""
        if self._sweep is not None:
            self._sweep.cancel()
        self._idle.close()
        self._unreachable.clear()

    def _close_idle(self) -> None:
        self._sweep = None
        loop = asyncio.get_running_loop()
        self._idle.close(loop.time() - IDLE_S)
        if self._idle:
            self._sweep = loop.call_later(IDLE_S, self._close_idle)
