"""A push as delivery knows it: asked for, under way, or over."""

from dataclasses import dataclass, field
from typing import NamedTuple

from protos.push.v1.push_pb2 import SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from services.delivery.state.audience_parts import Part, Targets, listed_targets


class Over(NamedTuple):
    """What was left of a partition when the push ended there, and the moment of the log at which it is forgotten."""

    part: Part
    forget_ms: int


@dataclass(slots=True)
class Push:
    """One push that started in at least one partition; `order` is its offset in push-commands.

    `over`: partitions where it was cancelled or expired with devices left; some may have it and not have said so.
    """

    send: SendPush
    order: int
    expires_ms: int
    parts: dict[int, Part] = field(default_factory=dict)
    over: dict[int, Over] = field(default_factory=dict)

    @property
    def msgid(self) -> int:
        return self.send.msgid

    @property
    def is_ios(self) -> bool:
        return self.send.platform == PLATFORM_IOS

    @property
    def is_listed(self) -> bool:
        return self.send.audience.HasField("devices")

    @property
    def ids(self) -> range:
        return range(self.msgid, self.msgid + max(1, self.send.id_count))

    def part(self, partition: int) -> Part | None:
        """Who is not done with it there, also where nobody is sent it any more."""
        return self.parts.get(partition) or (self.over[partition].part if partition in self.over else None)


@dataclass(slots=True)
class Waiting:
    """A push that was asked for and has not started in the `missing` partitions."""

    send: SendPush
    order: int
    accepted_ms: int
    missing: set[int]
    _targets: dict[int, Targets] | None = None

    @property
    def expires_ms(self) -> int:
        return self.accepted_ms + self.send.period_s * 1000

    def targets(self, partition: int) -> Targets:
        """The listed devices there; what they hold is the caller's."""
        if self._targets is None:
            self._targets = listed_targets(self.send)
        return self._targets[partition]
