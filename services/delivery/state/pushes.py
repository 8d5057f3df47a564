"""The stages of a push: requested, started, and ended in a partition. `delivery_state` draws the life cycle."""

from dataclasses import dataclass, field
from typing import NamedTuple, assert_never

from protos.push.v1.push_pb2 import PushCommand, SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from services.delivery.state.audience_parts import AudiencePart, Targets, listed_targets
from services.delivery.state.dedupe_window import PushSource

LATE_MS = 86_400_000
"""How long after a cancel or the expiry acknowledgements of a push still count."""


class EndedPart(NamedTuple):
    """The audience part of a partition where the push was cancelled or expired before all devices had it.

    Late acknowledgements count until the log's time reaches `forget_ms` (milliseconds since 1970).
    """

    part: AudiencePart
    forget_ms: int


@dataclass(slots=True)
class RequestedPush:
    """A push that has not started in the `remaining` partitions; `offset` is the command's offset in push-commands."""

    send: SendPush
    offset: int
    accepted_ms: int
    source: PushSource
    remaining: set[int]
    _targets: dict[int, Targets] | None = None

    @property
    def expires_ms(self) -> int:
        return self.accepted_ms + self.send.period_s * 1000

    @property
    def is_listed(self) -> bool:
        return self.send.audience.HasField("devices")

    @property
    def is_ios(self) -> bool:
        return self.send.platform == PLATFORM_IOS

    def targets(self, partition: int) -> Targets:
        """Return the listed devices in the partition; the caller may change the returned dict."""
        if self._targets is None:
            self._targets = listed_targets(self.send)
        return self._targets[partition]


@dataclass(slots=True)
class StartedPush:
    """A push that has started in at least one partition; `offset` is the command's offset in push-commands.

    `active_parts` holds, by partition, the audiences that are being sent to, `ended_parts` those that only wait for
    late acknowledgements.
    """

    send: SendPush
    offset: int
    expires_ms: int
    active_parts: dict[int, AudiencePart] = field(default_factory=dict)
    ended_parts: dict[int, EndedPart] = field(default_factory=dict)

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
    def msgids(self) -> range:
        """All message ids of the push; more than one only for a token list."""
        return range(self.msgid, self.msgid + max(1, self.send.id_count))

    def part(self, partition: int) -> AudiencePart | None:
        """Return the partition's audience part, active or ended."""
        if (active := self.active_parts.get(partition)) is not None:
            return active
        ended = self.ended_parts.get(partition)
        return ended.part if ended is not None else None


def requested_push(command: PushCommand, offset: int, owned: frozenset[int]) -> RequestedPush:
    """Return the push as requested in the owned partitions: all of them for a filter, those with a listed device for
    a list. ValueError: the audience is not resolved, or its columns have different lengths."""
    send, accepted_ms, source = command.send, command.meta.time_ms, PushSource.of(command)
    match send.audience.WhichOneof("audience"):
        case "everyone" | "filter":
            return RequestedPush(send, offset, accepted_ms, source, set(owned))
        case "devices":
            targets = listed_targets(send, owned)
            return RequestedPush(send, offset, accepted_ms, source, set(targets), targets)
        case "tokens" | "aliases" | None:
            raise ValueError(f"push {send.msgid} has no audience that can be resolved")
        case never:
            assert_never(never)
