"""A registry whose owner is elected by the log; a test can make another process the owner for a while."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from protos.registry.v1.registry_pb2 import ListAppsRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.instances_pb2 import InstanceAlive, InstanceFact, InstanceLeft
from protos.runtime.v1.log_pb2 import Meta
from services.domain.role_context import HAZARDOUS
from services.errors import CarillonError, NotOwnerError
from services.log.port import Log, NewRecord
from services.net.rpc.channel import Channel
from services.net.rpc.local import LocalServer
from services.process.clock import Clock
from services.process.metrics import RPC_ERRORS
from services.replica.instances import INSTANCES_TOPIC, InstanceDirectory
from services.replica.membership import Membership
from services.replica.owner_channel import OwnerChannel
from testkit.waiting import until

_ADDRESS = "registry"
_LATE_EPOCH = 1 << 40
_SELDOM_S = 3600.0


class OwnedRegistry:
    """A registry with a membership: callers use `channel`, which finds the owner by the log.

    `membership` is for the registry's RoleContext. It writes to the log only when something has changed, so that it
    never concludes from its own regular records that the other process has ended.
    """

    def __init__(self, log: Log, clock: Clock, server: LocalServer) -> None:
        self._directory = InstanceDirectory()
        owner: Any = OwnerChannel(self._directory, "registry", 0, _ADDRESS, lambda _: server.channel(), HAZARDOUS)
        self.channel = cast(Channel, owner)
        self.membership = Membership(log, clock, "registry", 0, _ADDRESS, "its directory", _SELDOM_S)
        self._log = log
        self._server = server

    @asynccontextmanager
    async def known_to_callers(self) -> AsyncIterator[None]:
        """Let `channel` follow the log's instances."""
        following = asyncio.create_task(self._directory.run(self._log))
        yield
        following.cancel()
        await asyncio.wait([following])

    @asynccontextmanager
    async def standing_by(self) -> AsyncIterator[None]:
        """Announce another owner in the log: the registry stands by inside the block. Callers still reach it."""
        alive = InstanceAlive(
            role="registry", address=_ADDRESS, place="another directory", caught_up=True, epoch=_LATE_EPOCH
        )
        await self._append(InstanceFact(alive=alive))
        await until(self._stands_by)
        yield
        await self._append(InstanceFact(left=InstanceLeft()))

    @staticmethod
    def refused() -> float:
        """Return how many calls were refused because this process is not the owner."""
        samples = (sample for metric in RPC_ERRORS.collect() for sample in metric.samples)
        return sum(each.value for each in samples if each.labels.get("code") == NotOwnerError.status)

    async def _append(self, fact: InstanceFact) -> None:
        fact.instance = "another process"
        fact.meta.CopyFrom(Meta(event_id=secrets.token_bytes(16)))
        await self._log.append([NewRecord(INSTANCES_TOPIC, 0, fact.instance.encode(), fact.SerializeToString())])

    async def _stands_by(self) -> bool:
        try:
            await RegistryServiceStub(self._server.channel()).ListApps(ListAppsRequest())
        except CarillonError as error:
            return isinstance(error, NotOwnerError)
        return False
