"""Devices that have left a gateway lately: which of them the registry has confirmed, and for how long that counts."""

from services.gateway.connections import DeviceSession
from services.gateway.left_devices import LATEST, LeftDevices
from testkit.gateway.role import ANDROID


def left(token: str, partition: int = 0, number: int = 7) -> DeviceSession:
    return DeviceSession(1, ANDROID, token, partition, number)


def test_a_device_that_left_is_known_by_its_own_number() -> None:
    devices = LeftDevices(2)
    devices.add(left("t", 3))
    assert devices.has(ANDROID, "t", 3, 7)
    assert not devices.has(ANDROID, "t", 3, 8)
    assert not devices.has(ANDROID, "u", 3, 7)
    assert not devices.has("1000000009", "t", 3, 7)


def test_another_owner_makes_the_devices_of_its_shard_unknown_until_it_has_confirmed_the_connected_ones() -> None:
    devices = LeftDevices(2)
    for partition in (0, 1):
        devices.add(left("t", partition))
    devices.forget(1)
    devices.add(left("u", 1))
    assert [devices.has(ANDROID, token, 1, 7) for token in "tu"] == [False, False]
    assert devices.has(ANDROID, "t", 0, 7)
    devices.note_confirmed(1)
    assert [devices.has(ANDROID, token, 1, 7) for token in "tu"] == [False, False]
    devices.add(left("u", 1))
    assert devices.has(ANDROID, "u", 1, 7)


def test_the_latest_devices_are_known_and_no_more_than_the_upper_bound() -> None:
    devices = LeftDevices(1)
    for number in range(2 * LATEST):
        devices.add(left("t", 0, number))
    known = [devices.has(ANDROID, "t", 0, number) for number in range(2 * LATEST)]
    assert LATEST // 2 <= sum(known) <= LATEST
    assert known == sorted(known), "those that left first are forgotten first"
