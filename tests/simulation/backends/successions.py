"""Checks of owners at the end of a world: each process of a shard takes over when the other one is killed."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from protos.runtime.v1.log_pb2 import AwaitRequest
from protos.runtime.v1.log_pb2_grpc import PositionsServiceStub
from services.domain.role_context import ROLES_WITH_STANDBYS
from services.errors import CarillonError
from services.net.rpc.channel import Channel
from tests.simulation.kernel.hosts import RoleHost
from tests.simulation.kernel.installation import Installation, shard_of

BOUND_S = 20.0
"""Time within which a standby must answer, and a started process be ready, even where log and network are slow."""

_POLL_S = 0.1


async def not_taken_over(installation: Installation, hosts: Sequence[RoleHost]) -> list[str]:
    """Kill each process that may own a shard, one of a shard at a time; return those for which none took over."""
    by_shard: dict[str, list[RoleHost]] = defaultdict(list)
    for host in hosts:
        if installation.has_owners and host.role.name in ROLES_WITH_STANDBYS:
            by_shard[shard_of(host.name)].append(host)
    both = [each for each in by_shard.values() if len(each) > 1]
    found = await asyncio.gather(*(_of_shard(installation, each) for each in both))
    return [finding for findings in found for finding in findings]


async def _of_shard(installation: Installation, hosts: Sequence[RoleHost]) -> list[str]:
    role, _, shard = shard_of(hosts[0].name).partition("-")
    channel = installation.client_peers().all(role)[int(shard)]
    findings = []
    for host in hosts:
        host.hold()
        if not await _answers(channel):
            findings.append(f"succession: no process has taken over from {host.name} within {BOUND_S:g} s")
        host.release()
        if not await _is_ready(host):
            findings.append(f"succession: {host.name} is not ready {BOUND_S:g} s after its start")
    return findings


async def _answers(channel: Channel) -> bool:
    """Return whether a process answers for the shard in time."""
    try:
        async with asyncio.timeout(BOUND_S):
            while True:
                try:
                    await PositionsServiceStub(channel).Await(AwaitRequest())
                    return True
                except CarillonError:
                    await asyncio.sleep(_POLL_S)
    except TimeoutError:
        return False


async def _is_ready(host: RoleHost) -> bool:
    try:
        async with asyncio.timeout(BOUND_S):
            while not host.is_ready:
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        return False
    return True
