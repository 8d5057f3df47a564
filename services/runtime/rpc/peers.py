"""Channels to the other roles, one for each shard, and waiting until they have applied records."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from protos.runtime.v1.log_pb2 import AwaitRequest, Position
from protos.runtime.v1.log_pb2_grpc import PositionsServiceStub
from services.runtime.errors import DeadlineError, UnavailableError
from services.runtime.log.topics import Topics
from services.runtime.ownership.directory import InstanceDirectory
from services.runtime.rpc.channel import Channel

WAIT_APPLIED_S = 5.0
"""Upper bound of the wait for the application of one's own writes, seconds."""


class Peers:
    """Channels by role. The n-th leads to the owner of shard n: of the partitions p with p mod count = n."""

    def __init__(
        self,
        channels: Mapping[str, Sequence[Channel]],
        topics: Topics,
        directory: InstanceDirectory | None = None,
    ) -> None:
        """`directory`: where channels find the owners of shards; None: calls go to the addresses in the settings."""
        self.directory = directory
        self._channels = channels
        self._topics = topics
        self._positions = {
            role: [PositionsServiceStub(channel) for channel in of_role] for role, of_role in channels.items()
        }

    def all(self, role: str) -> Sequence[Channel]:
        """Return one channel for each shard of the role, in order."""
        return self._channels[role]

    @property
    def channels(self) -> Mapping[str, Sequence[Channel]]:
        """The channels by role."""
        return self._channels

    def owner(self, role: str, partition: int) -> Channel:
        """Return the channel to the owner of the partition."""
        by_shard = self._channels[role]
        return by_shard[partition % len(by_shard)]

    async def wait_applied(self, positions: Iterable[Position]) -> None:
        """Return once the roles in Topic.answered_by have applied these records and the facts that follow from them.

        DeadlineError after WAIT_APPLIED_S: the records are in the log, but a role is behind.
        """
        try:
            async with asyncio.timeout(WAIT_APPLIED_S):
                await self._wait(list(positions), set())
        except (TimeoutError, DeadlineError, UnavailableError) as error:
            raise DeadlineError("accepted, but not yet applied everywhere; repeat the request") from error

    async def roles_behind(self, roles: Iterable[str], position: Position) -> list[str]:
        """Return the roles with a shard whose owner has not applied the record within WAIT_APPLIED_S."""
        named = [role for role in roles if role in self._positions]
        caught_up = await asyncio.gather(*(self._has_applied(role, position) for role in named))
        return [role for role, has_applied in zip(named, caught_up, strict=True) if not has_applied]

    async def _has_applied(self, role: str, position: Position) -> bool:
        request = AwaitRequest(positions=[position])
        try:
            await asyncio.gather(*(stub.Await(request, timeout=WAIT_APPLIED_S) for stub in self._positions[role]))
        except (DeadlineError, UnavailableError):
            return False
        return True

    async def _wait(self, positions: list[Position], seen: set[str]) -> None:
        while positions:
            topics = {position.topic for position in positions} - seen
            seen |= topics
            roles = dict.fromkeys(role for topic in sorted(topics) for role in self._topics[topic].answered_by)
            request = AwaitRequest(positions=positions)
            stubs = [stub for role in roles for stub in self._positions[role]]
            answers = await asyncio.gather(*(stub.Await(request, timeout=WAIT_APPLIED_S) for stub in stubs))
            positions = [p for answer in answers for p in answer.produced if p.topic not in seen]

    async def close(self) -> None:
        for channels in self._channels.values():
            for channel in channels:
                await channel.close()
