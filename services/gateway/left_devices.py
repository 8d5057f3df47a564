"""The devices that have left this gateway lately, which are welcomed while the registry does not answer."""

from dataclasses import dataclass, field

from services.gateway.connections import DeviceSession

LATEST = 40_000
"""Upper bound of the devices that are remembered, of all shards together; each takes about 80 bytes."""


@dataclass(slots=True)
class _Shard:
    """`is_confirmed`: the present owner of the registry's shard has confirmed the numbers of the connected devices."""

    is_confirmed: bool = True
    newer: set[int] = field(default_factory=set)
    older: set[int] = field(default_factory=set)


class LeftDevices:
    """The devices whose numbers the registry has confirmed and whose connection has ended, by shard of the registry.

    Another owner of a shard may have a log that went back. So from its coming on none of the shard's devices is known
    here, and none is added, until that owner has confirmed the numbers of the connected ones.
    """

    def __init__(self, shards: int) -> None:
        self._shards = [_Shard() for _ in range(shards)]

    def add(self, session: DeviceSession) -> None:
        """Remember a device that leaves. Beyond half of the upper bound, the half that left first is forgotten next."""
        shard = self._shards[session.partition % len(self._shards)]
        if not shard.is_confirmed:
            return
        shard.newer.add(_name(session.appkey, session.token, session.number))
        if len(shard.newer) >= LATEST // 2 // len(self._shards):
            shard.newer, shard.older = set(), shard.newer

    def has(self, appkey: str, token: str, partition: int, number: int) -> bool:
        """Return whether the registry has confirmed that this number is the token's, and no other owner came since."""
        shard, name = self._shards[partition % len(self._shards)], _name(appkey, token, number)
        return name in shard.newer or name in shard.older

    def forget(self, shard: int) -> None:
        """Forget the devices of a shard that has another owner."""
        self._shards[shard] = _Shard(is_confirmed=False)

    def note_confirmed(self, shard: int) -> None:
        """Note that the present owner has confirmed the numbers of the connected devices."""
        self._shards[shard].is_confirmed = True


def _name(appkey: str, token: str, number: int) -> int:
    return hash((appkey, token, number))  # 64 bits; strings are hashed with a secret of the process
