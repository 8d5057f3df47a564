"""The table of welcomed devices' connections, and connection ids."""

from services.gateway.connections import ConnectionIds, ConnectionTable, DeviceSession
from testkit.gateway.role import ANDROID, NOON_MS


def test_connection_ids_grow_and_differ_between_gateways() -> None:
    one, other = ConnectionIds(1), ConnectionIds(2)
    ids = [one.take(NOON_MS) for _ in range(100)]
    assert ids == sorted(set(ids))
    assert one.take(NOON_MS - 5000) > ids[-1]
    assert one.take(NOON_MS + 1000) > ids[-1]
    assert other.take(NOON_MS) not in ids
    assert ids[-1] < 2**63


def test_removing_a_replaced_connection_keeps_the_newer_one() -> None:
    connections: ConnectionTable[str] = ConnectionTable()
    old, new = DeviceSession(1, ANDROID, "t", 3, 0), DeviceSession(2, ANDROID, "t", 3, 0)
    assert connections.add(old, "old") is None
    assert connections.add(new, "new") == "old"
    assert connections.remove(old)
    assert not connections.remove(old)
    assert (connections.counts(), connections.find(2), len(connections)) == ({ANDROID: 1}, "new", 1)
    assert (list(connections.sessions(1, 2)), list(connections.sessions(0, 2))) == ([new], [])
    assert connections.remove(new)
    assert connections.counts() == {}


def test_a_replaced_connection_that_closes_after_the_newer_one_is_removed() -> None:
    """A connection that drains stays in the table until the device closes it."""
    connections: ConnectionTable[str] = ConnectionTable()
    draining, newer, other = (DeviceSession(number, ANDROID, "t", 3, 0) for number in (1, 2, 3))
    connections.add(draining, "draining")
    assert connections.add(newer, "newer") == "draining"
    assert connections.remove(newer)
    assert connections.remove(draining)
    assert (connections.counts(), len(connections), connections.newest(ANDROID, "t")) == ({}, 0, 0)
    connections.add(draining, "draining")
    connections.add(newer, "newer")
    assert connections.remove(newer)
    connections.add(other, "other")
    assert connections.remove(draining)
    assert connections.newest(ANDROID, "t") == 3
