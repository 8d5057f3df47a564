"""Two scheduling processes with the same shard on one log: one owns it, the other one stands by and takes over."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY

from protos.scheduling.v1.scheduling_pb2 import GetTaskRequest
from protos.scheduling.v1.scheduling_pb2_grpc import SchedulingServiceStub
from services.domain.apps import AppDirectory
from services.domain.master_key import Keys
from services.domain.role import BuiltRole, RoleContext
from services.domain.topics import TASK_COMMANDS, TOPICS
from services.errors import UnavailableError
from services.log.port import DelegatingLog, Log, NewRecord
from services.net.rpc.channel import Channel
from services.net.rpc.local import LocalServer
from services.replica.health import Health
from services.replica.instances import InstanceDirectory
from services.replica.membership import Membership
from services.replica.owner_channel import OwnerChannel
from services.replica.peers import Peers
from services.scheduling.main import build
from testkit.services import add_servicers
from tests.services.scheduling.conftest import SchedulingHarness, started

BOUND_S = 60
INTERVAL_S = 0.02


class ProcessLog(DelegatingLog):
    """One process's connection to the log, which can be cut."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.is_cut = False
        self.restored = asyncio.Event()

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        if self.is_cut:
            await self.restored.wait()
        return await super().append(new_records)

    def cut(self) -> None:
        self.is_cut = True

    def restore(self) -> None:
        self.is_cut = False
        self.restored.set()


class Processes:
    """Scheduling processes, reached over an OwnerChannel; `a` is the address of the first, `b` that of the second."""

    def __init__(self, harness: SchedulingHarness) -> None:
        self.harness = harness
        self.servers: dict[str, LocalServer] = {}
        self.logs: dict[str, ProcessLog] = {}
        self.roles: dict[str, BuiltRole] = {}
        self.directory = InstanceDirectory()
        channel: Any = OwnerChannel(self.directory, "scheduling", 0, "a", self.connect)
        self.peers = Peers({"scheduling": [channel], "registry": [], "targeting": [], "delivery": []}, TOPICS)
        harness.peers = self.peers

    def connect(self, address: str) -> Channel:
        return self.servers[address].channel()

    @asynccontextmanager
    async def running(self, address: str) -> AsyncIterator[None]:
        harness, server = self.harness, LocalServer()
        log = self.logs[address] = ProcessLog(harness.log)
        directory = str(harness.directory / address)
        settings = msgspec.structs.replace(harness.settings, data_dir=directory)
        membership = Membership(log, harness.clock, "scheduling", 0, address, directory, INTERVAL_S)
        apps = AppDirectory(log)
        role = self.roles[address] = build(
            settings, RoleContext(log, harness.clock, self.peers, Keys({}), apps, membership)
        )
        add_servicers(role, server)
        self.servers[address] = server
        async with started([apps, *role.services]):
            yield

    async def until_owner(self, address: str) -> None:
        async with asyncio.timeout(BOUND_S):
            while self.directory.address("scheduling", 0) != address:
                await self.directory.change.wait()

    async def owner_and_standby(self, stack: AsyncExitStack) -> AsyncExitStack:
        """Run a, and b as its standby, until the stack ends; return the stack whose end stops a before."""
        owner = await stack.enter_async_context(AsyncExitStack())
        await owner.enter_async_context(self.running("a"))
        await self.until_owner("a")
        await stack.enter_async_context(self.running("b"))
        return owner

    def health(self, address: str) -> Health:
        """Return a health check of the process, which must be ready."""
        health = Health(self.harness.clock)
        health.monitored(self.logs[address])
        health.watch(self.roles[address].followers)
        return health


@pytest.fixture
async def processes(harness: SchedulingHarness) -> AsyncIterator[Processes]:
    processes = Processes(harness)
    following = asyncio.create_task(processes.directory.run(harness.log))
    yield processes
    following.cancel()
    await asyncio.wait([following])


async def test_a_standby_takes_over_when_the_owner_stops(processes: Processes) -> None:
    """A planned restart: calls go on, and tasks that the former owner was given are sent once."""
    harness = processes.harness
    async with AsyncExitStack() as stack:
        owner = await processes.owner_and_standby(stack)
        await harness.create("t", in_s=5)
        with pytest.raises(UnavailableError, match="stands by"):
            await _get(processes.servers["b"].channel())
        stopping = asyncio.create_task(owner.aclose())
        assert await harness.status("t") == "UNSENT"
        await stopping
        await processes.until_owner("b")
        await harness.create("u", in_s=5)
        harness.clock.move(5)
        await harness.until_sent(2)
        assert len({push.meta.event_id for push in await harness.sent_pushes()}) == 2
        assert await harness.status("t") == "SENT"


async def test_a_standby_takes_over_from_an_owner_that_is_cut_off(processes: Processes) -> None:
    """The former owner stands by once it reaches the log again, and takes over in its turn."""
    harness = processes.harness
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(processes.running("a"))
        await processes.until_owner("a")
        second = await stack.enter_async_context(AsyncExitStack())
        await second.enter_async_context(processes.running("b"))
        await harness.create("t", in_s=5)
        processes.logs["a"].cut()
        await processes.until_owner("b")
        await harness.create("u", in_s=5)
        processes.logs["a"].restore()
        harness.clock.move(5)
        await harness.until_sent(2)
        assert len({push.meta.event_id for push in await harness.sent_pushes()}) == 2
        await second.aclose()
        await processes.until_owner("a")
        assert await harness.status("t") == "SENT"
        assert await harness.status("u") == "SENT"


async def test_only_the_owner_is_said_to_be_behind_the_log(processes: Processes) -> None:
    """A standby reads no commands; the owner's lag counts those that it has not decided."""
    harness = processes.harness
    async with AsyncExitStack() as stack:
        owner = await processes.owner_and_standby(stack)
        health = processes.health("b")
        await harness.create("t")
        await health.check()
        harness.clock.move(5)
        await health.check()
        assert _lag() == (0, 0)
        await owner.aclose()
        await processes.until_owner("b")
        await harness.create("u")
        await health.check()
        assert _lag() == (0, 0)
        processes.logs["b"].cut()
        await harness.create("v", wait=False)
        await health.check()
        harness.clock.move(5)
        await health.check()
        assert _lag() == (1, 5)
        processes.logs["b"].restore()
        await harness.cancel("v")
        await health.check()
        assert _lag() == (0, 0)
    assert not health.problems()


def _lag() -> tuple[float, float]:
    """Return how many commands scheduling has not decided yet, and for how many seconds they have waited."""
    records = REGISTRY.get_sample_value("carillon_lag_records", {"role": "scheduling", "topic": TASK_COMMANDS.name})
    seconds = REGISTRY.get_sample_value("carillon_lag_seconds", {"role": "scheduling"})
    assert records is not None
    assert seconds is not None
    return records, seconds


async def _get(channel: Channel) -> Any:
    return await SchedulingServiceStub(channel).GetTask(GetTaskRequest(task_key="t"))
