"""Connections to push services: hostile endpoints connect to nothing, and a checked address is the one connected to."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence

import pytest

from services.domain.endpoint_connections import EndpointConnector, SystemResolver
from services.domain.push_endpoints import AllowedHosts, EndpointRefusedError, parse_endpoint
from services.errors import UnavailableError
from services.push_simulator.certificates import SelfSigned
from testkit.delivery.hostile_endpoints import PRIVATE_ADDRESSES, hostile_endpoints


class ScriptedResolver:
    """Answers with other addresses each time, the last ones for ever, and notes who was asked for."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


class Dialled:
    """Stands for the loop's `create_connection`: notes the addresses, and connects to none of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.addresses: list[tuple[str, int]] = []
        self.names: list[str | None] = []
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", self._connect, raising=False)

    async def _connect(
        self, protocol: object, host: str, port: int, *, ssl: object, server_hostname: str | None
    ) -> tuple[object, object]:
        self.addresses.append((host, port))
        self.names.append(server_hostname)
        raise ConnectionRefusedError("nothing listens in this test")


@pytest.fixture
async def dialled(monkeypatch: pytest.MonkeyPatch) -> Dialled:
    return Dialled(monkeypatch)


def connector(*answers: Sequence[str]) -> tuple[EndpointConnector, ScriptedResolver]:
    resolver = ScriptedResolver(*answers)
    return EndpointConnector(resolver, ssl.create_default_context()), resolver


async def attempt(opening: EndpointConnector, url: str, *hosts: str) -> None:
    await opening.connect(parse_endpoint(url), AllowedHosts(hosts), asyncio.Protocol)


async def test_hostile_endpoints_open_no_connection_and_ask_for_no_name(dialled: Dialled) -> None:
    opening, resolver = connector(["142.250.1.1"])
    for url in hostile_endpoints():
        with pytest.raises(EndpointRefusedError):
            await attempt(opening, url)
    assert (dialled.addresses, resolver.asked) == ([], [])


@pytest.mark.parametrize("address", PRIVATE_ADDRESSES)
async def test_an_allowed_name_with_a_private_address_is_not_connected_to(address: str, dialled: Dialled) -> None:
    opening, _ = connector([address])
    for hosts in ([], ["*"]):
        with pytest.raises(EndpointRefusedError, match="no public address"):
            await attempt(opening, "https://fcm.googleapis.com/x", *hosts)
    assert dialled.addresses == []


async def test_only_the_public_ones_of_several_addresses_are_tried_and_not_all(dialled: Dialled) -> None:
    opening, _ = connector(["10.0.0.1", "142.250.1.1", "::1", "142.250.1.2", "142.250.1.3", "142.250.1.4"])
    with pytest.raises(UnavailableError):
        await attempt(opening, "https://fcm.googleapis.com/x")
    assert dialled.addresses == [(f"142.250.1.{last}", 443) for last in (1, 2, 3)]
    assert dialled.names == ["fcm.googleapis.com"] * 3


async def test_a_name_is_resolved_once_for_a_connection(dialled: Dialled) -> None:
    """The second answer is the one by which a hostile name would lead to this machine."""
    opening, resolver = connector(["142.250.1.1"], ["127.0.0.1"])
    with pytest.raises(UnavailableError):
        await attempt(opening, "https://push.example.com/x", "*")
    assert dialled.addresses == [("142.250.1.1", 443)]
    assert resolver.asked == [("push.example.com", 443)]
    with pytest.raises(EndpointRefusedError):
        await attempt(opening, "https://push.example.com/x", "*")
    assert dialled.addresses == [("142.250.1.1", 443)]


async def test_a_name_that_does_not_resolve_in_time_is_given_up() -> None:
    async def never(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    opening = EndpointConnector(never, ssl.create_default_context(), timeout_s=0.01)
    with pytest.raises(UnavailableError, match=r"within 0\.01 s"):
        await attempt(opening, "https://fcm.googleapis.com/x")


@pytest.fixture
async def own_service() -> AsyncIterator[tuple[int, SelfSigned]]:
    certificate = SelfSigned.make("127.0.0.1")
    server = await asyncio.start_server(
        lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=certificate.server_context([])
    )
    yield server.sockets[0].getsockname()[1], certificate
    server.close()


async def test_an_own_push_service_on_a_private_address(own_service: tuple[int, SelfSigned]) -> None:
    port, certificate = own_service
    tls = ssl.create_default_context(cadata=certificate.certificate_pem)
    resolver = SystemResolver()
    opening = EndpointConnector(resolver, tls)
    endpoint = parse_endpoint(f"https://localhost:{port}/x")
    with pytest.raises(EndpointRefusedError):
        await opening.connect(endpoint, AllowedHosts(), asyncio.Protocol)
    allowed = AllowedHosts([f"localhost:{port}", f"other:{port}"])
    transport, _ = await opening.connect(endpoint, allowed, asyncio.Protocol)
    assert transport.get_extra_info("peername")[1] == port
    transport.close()

    async def to_this_machine(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    with pytest.raises(UnavailableError, match="certificate"):  # the certificate is localhost's
        await EndpointConnector(to_this_machine, tls).connect(
            parse_endpoint(f"https://other:{port}/x"), allowed, asyncio.Protocol
        )
    resolver.close()
