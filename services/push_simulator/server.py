"""A simulator as a service that listens, over TLS and HTTP/2."""

import asyncio
from abc import ABC, abstractmethod

from services.push_simulator.certificates import SelfSigned
from services.push_simulator.connection import ConnectionBehaviour, Http2ServerConnection, HttpRequest, ScriptedReply


class SimulatedService(ABC):
    """A push service on `host` and `port` (0: any free port); `url` is valid once it is ready."""

    name: str
    behaviour: ConnectionBehaviour

    def __init__(self, host: str, port: int, certificate: SelfSigned | None) -> None:
        self.connections: set[Http2ServerConnection] = set()
        self._certificate = certificate or SelfSigned.make(host)
        self._address = (host, port)

    @property
    def url(self) -> str:
        host, port = self._address
        return f"https://{host}:{port}"

    @property
    def authority(self) -> str:
        """PEM text of the certificate that clients have to trust."""
        return self._certificate.certificate_pem

    @abstractmethod
    def reply_to(self, request: HttpRequest) -> ScriptedReply:
        """Return the reply to a request."""

    async def run(self, ready: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        context = self._certificate.server_context(["h2"])
        server = await loop.create_server(
            lambda: Http2ServerConnection(self, self.connections), *self._address, ssl=context
        )
        self._address = server.sockets[0].getsockname()[:2]
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            for connection in list(self.connections):
                connection.close()
