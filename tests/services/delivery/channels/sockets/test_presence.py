"""Presence: which connection of a device may be sent its backlog, and whose backlogs are held."""

import pytest

from protos.delivery.v1.delivery_pb2 import Connected
from services.delivery.channels.sockets.gateway_stream import GatewayStream
from services.delivery.channels.sockets.presence import TAKEOVER_MS, Presence
from services.delivery.state.audience_parts import DeviceAddress


@pytest.fixture
def stream() -> GatewayStream:
    return GatewayStream(lambda appkey: False)


def announce(presence: Presence, stream: GatewayStream, device: DeviceAddress, connection: int) -> DeviceAddress | None:
    connected = Connected(connection=connection, appkey=device.appkey, partition=device.partition, number=device.number)
    return presence.connect(stream, connected, now_ms=0)


def connect(presence: Presence, stream: GatewayStream, device: DeviceAddress, connection: int) -> None:
    assert announce(presence, stream, device, connection) == device


def test_a_look_for_held_backlogs_costs_nothing_for_other_apps(stream: GatewayStream) -> None:
    presence = Presence()
    others = [DeviceAddress("other", number % 8, number) for number in range(100)]
    paused, held, released = DeviceAddress("paused", 0, 1), DeviceAddress("app", 3, 7), DeviceAddress("app", 4, 7)
    for connection, device in enumerate([*others, paused, held, released]):
        connect(presence, stream, device, connection)
    for device in (paused, held, released):
        presence.hold(device)
    presence.release(released)
    asked: list[str] = []

    def is_paused(appkey: str) -> bool:
        asked.append(appkey)
        return appkey == "paused"

    assert presence.held(is_paused) == [held]
    assert asked == ["paused", "app"]


def test_a_held_backlog_is_forgotten_with_its_connection(stream: GatewayStream) -> None:
    presence = Presence()
    replaced, ended, dropped = (DeviceAddress("app", 0, number) for number in range(3))
    other_gateway = GatewayStream(lambda appkey: False)
    for connection, device in enumerate((replaced, ended)):
        connect(presence, stream, device, connection)
    connect(presence, other_gateway, dropped, 2)
    for device in (replaced, ended, dropped):
        presence.hold(device)
    connect(presence, stream, replaced, 3)
    presence.disconnect(stream, 1)
    presence.drop(other_gateway)
    assert presence.held(lambda appkey: False) == []
    assert not any(map(presence.is_held, (replaced, ended, dropped)))


@pytest.mark.parametrize("ends", ["disconnect", "drop", "deadline"])
def test_each_later_connection_of_a_device_waits_for_the_first_one_on_another_gateway(
    stream: GatewayStream, ends: str
) -> None:
    presence, device = Presence(), DeviceAddress("app", 0, 1)
    newer, newest = (GatewayStream(lambda appkey: False) for _ in range(2))
    connect(presence, stream, device, 1)
    assert announce(presence, newer, device, 2) is None
    assert presence.disconnect(newer, 2) == []
    assert announce(presence, newer, device, 3) is None
    assert announce(presence, newest, device, 4) is None
    end = {
        "disconnect": lambda: presence.disconnect(stream, 1),
        "drop": lambda: presence.drop(stream),
        "deadline": lambda: presence.pop_overdue(TAKEOVER_MS),
    }
    assert end[ends]() == [device]
    assert presence.pop_overdue(TAKEOVER_MS) == []
    connect(presence, newest, device, 5)


@pytest.mark.parametrize(
    ("ahead_ms", "open_before", "reason"),
    [(60_000, True, "replaced"), (1, True, "draining"), (1, False, "replaced")],
)
async def test_a_connection_that_is_announced_again_may_be_older_than_one_with_a_smaller_id(
    stream: GatewayStream, ahead_ms: int, open_before: bool, reason: str
) -> None:
    """The device whose connection is closed for it must come back then: the other one may be dead."""
    presence, device, again = Presence(), DeviceAddress("app", 0, 1), GatewayStream(lambda appkey: False)
    connect(presence, stream, device, 1)
    connected = Connected(connection=1 + (ahead_ms << 20), appkey="app", partition=0, number=1, open_before=open_before)
    presence.connect(again, connected, now_ms=0)
    response = await stream.next_response()
    assert response is not None
    assert [(close.connection, close.reason) for close in response.closes] == [(1, reason)]


def test_a_device_that_is_away_when_its_older_connection_ends_waits_for_nothing_later(stream: GatewayStream) -> None:
    presence, device, newer = Presence(), DeviceAddress("app", 0, 1), GatewayStream(lambda appkey: False)
    connect(presence, stream, device, 1)
    assert announce(presence, newer, device, 2) is None
    assert presence.disconnect(newer, 2) == []
    assert presence.disconnect(stream, 1) == []
    connect(presence, newer, device, 3)
