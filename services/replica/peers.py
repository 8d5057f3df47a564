"""Channels to the other roles, one for each shard, and waiting until they have applied records."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from protos.runtime.v1.log_pb2 import AwaitRequest, Position
from protos.runtime.v1.log_pb2_grpc import PositionsServiceStub
from services.errors import CarillonError, DeadlineError
from services.log.topics import Topics
from services.net.rpc.channel import Channel
from services.replica.instances import InstanceDirectory

if TYPE_CHECKING:
    from protos.runtime.v1.log_pb2_grpc import PositionsServiceAsyncStub

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

        It waits for those instances of each role that read the record's partition (`Topic.readers`).
        DeadlineError: the records are in the log, but an instance is behind after WAIT_APPLIED_S, is away or refuses
        the call.
        """
        try:
            async with asyncio.timeout(WAIT_APPLIED_S):
                await self._wait(list(positions), set())
        except (TimeoutError, CarillonError) as error:
            raise DeadlineError("accepted, but not yet applied everywhere; repeat the request") from error

    async def roles_behind(self, roles: Iterable[str], position: Position) -> list[str]:
        """Return the roles with an owner that has not confirmed within WAIT_APPLIED_S that it applied the record.

        An owner that is away or refuses the call has not confirmed it.
        """
        named = [role for role in roles if role in self._positions]
        caught_up = await asyncio.gather(*(self._has_applied(role, position) for role in named))
        return [role for role, has_applied in zip(named, caught_up, strict=True) if not has_applied]

    async def _has_applied(self, role: str, position: Position) -> bool:
        request = AwaitRequest(positions=[position])
        try:
            await asyncio.gather(*(stub.Await(request, timeout=WAIT_APPLIED_S) for stub in self._positions[role]))
        except CarillonError:
            return False
        return True

    async def _wait(self, positions: list[Position], seen: set[str]) -> None:
        while positions:
            seen |= {position.topic for position in positions}
            calls = [
                stub.Await(AwaitRequest(positions=of_stub), timeout=WAIT_APPLIED_S)
                for stub, of_stub in self._readers(positions)
            ]
            answers = await asyncio.gather(*calls)
            positions = [p for answer in answers for p in answer.produced if p.topic not in seen]

    def _readers(self, positions: Iterable[Position]) -> list[tuple["PositionsServiceAsyncStub", list[Position]]]:
        """Return the instances to wait for, each with the positions in the partitions that it reads."""
        by_instance: defaultdict[tuple[str, int], list[Position]] = defaultdict(list)
        for position in positions:
            topic = self._topics[position.topic]
            for role in topic.answered_by:
                for number in topic.readers(role, position.partition, len(self._positions[role])):
                    by_instance[role, number].append(position)
        return [(self._positions[role][number], read) for (role, number), read in by_instance.items()]

    async def close(self) -> None:
        for channels in self._channels.values():
            for channel in channels:
                await channel.close()
