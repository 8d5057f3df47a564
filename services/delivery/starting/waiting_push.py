"""A push that has not started in all of its partitions, with what is known of its audience."""

from dataclasses import dataclass, field

from pyroaring import BitMap

from services.delivery.state.pushes import RequestedPush

LONG_LIST = 100
"""Messages up to which a push to listed devices is handled as one to a single device."""


@dataclass(slots=True, eq=False)
class WaitingPush:
    """A push that waits for its start in some partitions.

    `size`: bytes of the command. `unstarted`: the partitions whose start is not being written yet. `audiences`: those
    of them that are resolved. `attributes_until`: those of their starts; none where the request lists the devices.

    A push that is held up waits for targeting, and later pushes of its app no longer wait for it. `failures` counts the
    attempts that failed because of the push itself, and `retries` these and those that targeting did not answer
    although it had answered a probe. A push that is over has started everywhere or was ended.
    """

    push: RequestedPush
    size: int
    unstarted: set[int]
    audiences: dict[int, BitMap] = field(default_factory=dict)
    attributes_until: dict[int, int] = field(default_factory=dict)
    is_held_up: bool = False
    failures: int = 0
    retries: int = 0
    last_error: str = ""
    is_over: bool = False
    listed: dict[int, int] = field(default_factory=dict)
    """Messages to the listed devices, by partition: a list may name a device several times."""

    @classmethod
    def of(cls, push: RequestedPush) -> "WaitingPush":
        """Return the push with the audience that its request lists, if it lists one."""
        waiting = cls(push, push.send.ByteSize(), set(push.remaining))
        if push.is_listed:
            waiting.audiences = {partition: BitMap(push.targets(partition)) for partition in push.remaining}
            waiting.listed = {p: sum(map(len, push.targets(p).values())) for p in push.remaining}
        return waiting

    @property
    def msgid(self) -> int:
        return self.push.send.msgid

    @property
    def appkey(self) -> str:
        return self.push.send.appkey

    @property
    def is_long_list(self) -> bool:
        return sum(self.listed.values()) > LONG_LIST

    @property
    def unresolved(self) -> list[int]:
        """The partitions whose audience is not known."""
        return sorted(self.unstarted - self.audiences.keys())

    @property
    def is_resolved(self) -> bool:
        return len(self.audiences) == len(self.unstarted)

    def take(self, partition: int) -> BitMap:
        """Return the audience in the partition, which is being started from now on."""
        self.unstarted.discard(partition)
        return self.audiences.pop(partition)
