"""Connections to push services and receivers of webhooks: to an allowed host, at a checked address and no other.

The name is resolved here, once for each connection, and the connection goes to an address of that answer. So a name
whose next answer is a private address (DNS rebinding) leads nowhere. Redirections are not followed: an
answer is only read.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from services.domain.push_endpoints import AllowedHosts, Endpoint, EndpointRefusedError, public_addresses
from services.errors import UnavailableError

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host. OSError: there are none, or no answer."""

ProtocolT = TypeVar("ProtocolT", bound=asyncio.Protocol)

MAX_TRIED = 3
"""Addresses that are tried for one connection."""

_TIMEOUT_S = 5.0


class SystemResolver:
    """Resolves by the system, in threads of its own: slow names of others delay nothing else in the process."""

    def __init__(self, threads: int = 4) -> None:
        self._threads = ThreadPoolExecutor(threads, "push-endpoints")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        found = await asyncio.get_running_loop().run_in_executor(self._threads, _addresses, host, port)
        return list(dict.fromkeys(found))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class Connector(Protocol):
    """Opens connections to the hosts of endpoints."""

    async def connect(
        self, endpoint: Endpoint, hosts: AllowedHosts, protocol: Callable[[], ProtocolT]
    ) -> tuple[asyncio.Transport, ProtocolT]:
        """Connect to the endpoint's host. EndpointRefusedError: the host is not allowed. UnavailableError: no
        connection.
        """
        ...


class ReplacedConnector:
    """Opens connections to one address in place of every endpoint that may be called, without TLS: a simulator."""

    def __init__(self, address: Callable[[], tuple[str, int]]) -> None:
        self._address = address

    async def connect(
        self, endpoint: Endpoint, hosts: AllowedHosts, protocol: Callable[[], ProtocolT]
    ) -> tuple[asyncio.Transport, ProtocolT]:
        """EndpointRefusedError: the endpoint's host is not allowed. UnavailableError: no connection."""
        hosts.check(endpoint)
        try:
            return await asyncio.get_running_loop().create_connection(protocol, *self._address())
        except OSError as error:
            raise UnavailableError(f"no connection to the simulator: {error}") from None


def _addresses(host: str, port: int) -> list[str]:
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


class EndpointConnector:
    """Opens connections to endpoints. `tls` is the context of connections by https."""

    def __init__(self, resolve: Resolve, tls: ssl.SSLContext, timeout_s: float = _TIMEOUT_S) -> None:
        self._resolve = resolve
        self._tls = tls
        self._timeout_s = timeout_s

    async def connect(
        self, endpoint: Endpoint, hosts: AllowedHosts, protocol: Callable[[], ProtocolT]
    ) -> tuple[asyncio.Transport, ProtocolT]:
        """Connect to the endpoint's host, which a certificate proves by its name where the scheme is https.

        EndpointRefusedError: the host is not allowed, or has no public address. UnavailableError: no connection.
        """
        may_be_private = hosts.check(endpoint)
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await self._resolve(endpoint.host, endpoint.port)
                addresses = found if may_be_private else public_addresses(found)
                if not addresses:
                    raise EndpointRefusedError(f"the endpoint's host {endpoint.host} has no public address")
                return await self._connect_to_one(endpoint, addresses[:MAX_TRIED], protocol)
        except TimeoutError:
            raise UnavailableError(f"no connection to {endpoint.authority} within {self._timeout_s:g} s") from None
        except OSError as error:
            raise UnavailableError(f"no connection to {endpoint.authority}: {error}") from None

    async def _connect_to_one(
        self, endpoint: Endpoint, addresses: Sequence[str], protocol: Callable[[], ProtocolT]
    ) -> tuple[asyncio.Transport, ProtocolT]:
        is_https = endpoint.scheme == "https"
        for number, address in enumerate(addresses, 1):
            try:
                return await asyncio.get_running_loop().create_connection(
                    protocol,
                    address,
                    endpoint.port,
                    ssl=self._tls if is_https else None,
                    server_hostname=endpoint.host if is_https else None,
                )
            except OSError:
                if number == len(addresses):
                    raise
        raise AssertionError("there is an address, and the last one connects or raises")
