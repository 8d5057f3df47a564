"""How many HTTP connections may be open: in all, from one address, and beside those of the operations endpoint."""

import pytest

from services.domain.settings import Settings, SettingsError
from services.net.http.connections import HttpLimits, api_limits, pages_limits
from services.net.http.operations import Operations
from services.net.sockets import hard_file_limit, is_loopback
from testkit import plain_http
from testkit.services import running_services
from testkit.waiting import until_holds
from tests.services.net.http.serving import GET, serving

FOUR = HttpLimits(connections=4, per_address=2)


async def test_one_address_has_a_share_of_the_connections() -> None:
    async with serving(FOUR) as served:
        first = [await served.client() for _ in range(2)]
        await served.accepted(2)
        refused = await served.client()
        assert await refused.answer() == (503, b'{"result":503,"desc":"too many connections from this address"}')
        other = await served.client("127.0.0.2")
        other.send(GET)
        assert await other.answer() == (200, b"done")
        first[0].writer.close()
        await served.accepted(2)
        again = await served.client()
        again.send(GET)
        assert await again.answer() == (200, b"done")


async def test_exempt_addresses_have_no_share_and_the_whole_is_bounded() -> None:
    async with serving(FOUR, is_shared=is_loopback) as served:
        served.answering.clear()
        clients = [await served.client() for _ in range(4)]
        for client in clients:
            client.send(GET)
        await until_holds(lambda: served.requests == 4)
        refused = await served.client()
        assert await refused.answer() == (503, b'{"result":503,"desc":"too many connections"}')
        served.answering.set()
        assert [await client.answer() for client in clients] == [(200, b"done")] * 4


async def test_the_connection_that_waited_longest_makes_place_for_a_new_one() -> None:
    async with serving(FOUR, is_shared=is_loopback) as served:
        clients = [await served.client() for _ in range(4)]
        await served.accepted(4)
        clients[0].send(GET)
        assert await clients[0].answer() == (200, b"done")
        for number in (1, 2, 3, 0):
            new = await served.client()
            new.send(GET)
            assert await new.answer() == (200, b"done")
            assert await clients[number].ended() == b""
            clients.append(new)
        await served.accepted(4)


async def test_a_flood_of_silent_sockets_keeps_nobody_out() -> None:
    async with serving(FOUR, is_shared=is_loopback) as served:
        silent = [await served.client() for _ in range(200)]
        for _ in range(5):
            client = await served.client()
            client.send(GET)
            assert await client.answer() == (200, b"done")
            silent.append(await served.client())
        await served.accepted(4)
        for each in silent:
            each.writer.close()


async def test_the_operations_endpoint_answers_while_all_other_connections_are_taken() -> None:
    operations = Operations("127.0.0.1", 0)
    operations.set_ready()
    async with serving(FOUR, is_shared=is_loopback) as served, running_services([operations]):
        served.answering.clear()
        clients = [await served.client() for _ in range(4)]
        for client in clients:
            client.send(GET)
        await until_holds(lambda: served.requests == 4)
        async with plain_http.async_client(timeout=10) as http:
            assert (await http.get(f"http://127.0.0.1:{operations.port}/healthz")).status_code == 200


def test_the_settings_bound_the_connections() -> None:
    limits = api_limits(100, None)
    assert (limits.connections, limits.per_address) == (100, 25)
    assert api_limits(100, 7).per_address == 7
    assert api_limits(1, None).per_address == 1


def test_pages_take_at_most_half_of_the_reserved_files() -> None:
    connections = {files: pages_limits(files).connections for files in (256, 1024, 2048, 4096, 2**20)}
    assert connections == {256: 64, 1024: 64, 2048: 128, 4096: 256, 2**20: 256}


def test_more_connections_than_half_of_the_open_files_stop_the_start() -> None:
    files = hard_file_limit()
    with pytest.raises(SettingsError, match=f"^CARILLON_HTTP_MAX_CONNECTIONS is {files}, .*ulimit"):
        Settings(http_max_connections=files).check()
