"""The estimated cost of starting pushes, in units of about a microsecond."""

from services.delivery.starting.waiting_push import WaitingPush

ROUND = 10_000
"""Work that is started at once, by one append to the log at most."""

TURN = 2_500
"""Work that one app may have started before the next app's turn."""

_PARTITION_COST = 60
_TARGET_COST = 60
_CONNECTIONS_PER_UNIT = 3


def starting_cost(waiting: WaitingPush, partition: int, connected: int) -> float:
    """Return the work of starting the push in the partition, where `connected` devices of its app are connected."""
    if waiting.push.is_ios:
        return _PARTITION_COST
    if waiting.push.is_listed:
        return _PARTITION_COST + _TARGET_COST * waiting.listed[partition]
    return _PARTITION_COST + connected / _CONNECTIONS_PER_UNIT
