"""Presence: the connections whose backlogs are held are found without a look at the others."""

import pytest

from protos.delivery.v1.delivery_pb2 import Connected
from services.delivery.android.gateway_stream import GatewayStream
from services.delivery.android.presence import Presence
from services.delivery.state.addresses import DeviceAddress


@pytest.fixture
def stream() -> GatewayStream:
    return GatewayStream(lambda appkey: False)


def connect(presence: Presence, stream: GatewayStream, device: DeviceAddress, connection: int) -> None:
    connected = Connected(connection=connection, appkey=device.appkey, partition=device.partition, number=device.number)
    assert presence.connect(stream, connected, now_ms=0) == device


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
