"""The faults of a cluster, one after the other, each with a phase of its own."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

from services.replica.instances import ABSENT_AFTER
from services.replica.membership import RENEWAL_INTERVAL_S
from testkit.installation.cluster import PROXIED, ClusterInstallation
from testkit.kafka.cluster import SESSION_MS, KafkaCluster
from tests.soak.cluster.disk import SmallDisk
from tests.soak.cluster.fault_rows import Phase
from tests.soak.ledger import Ledger, now_ms

ROLES = ("edge", "gateway", "scheduling", "targeting", "registry", "delivery", "analytics")
UPGRADE_ORDER = (
    *("analytics", "targeting", "delivery", "scheduling", "registry", "accounts"),
    *("gateway", "edge", "console"),
)
"""The order of docs/operators/running.md: readers of a topic before its writers."""

UPGRADE = "upgrade"
CUT_OFF = ("edge", "scheduling", "delivery")
_LEASE_S = ABSENT_AFTER * RENEWAL_INTERVAL_S
_PAUSED_S = 2 * _LEASE_S + 1
_BROKEN_S = 8.0
_BROKER_BROKEN_S = SESSION_MS / 1000 + 4
_AHEAD_S = (90, -90)
_BEFORE_S = 1.0
_AFTER_S = 4.0
_DOWN_S = 0.5
_SUPERVISED_S = 0.5
_COMMANDS = "push-commands"

Action = Callable[[], Awaitable[None]]


class Fault(NamedTuple):
    """One fault. `inject` returns once it is over, and the processes that it has ended run again."""

    name: str
    inject: Action


def full_disk(role: str) -> str:
    """Return the name of the fault."""
    return f"full disk {role}"


def cut_off(role: str) -> str:
    """Return the name of the fault."""
    return f"cut off {role}"


def is_wanted(name: str, wanted: Sequence[str]) -> bool:
    """Return whether the name of a fault begins with one of `wanted`; none means all."""
    return not wanted or name.startswith(tuple(wanted))


class ClusterFaults:
    """Injects the faults whose names begin with one of `wanted`; `phases` has the time of each."""

    def __init__(
        self,
        installation: ClusterInstallation,
        cluster: KafkaCluster,
        disks: Mapping[str, SmallDisk],
        ledger: Ledger,
        wanted: Sequence[str],
    ) -> None:
        self.done: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.phases: list[Phase] = []
        self._installation = installation
        self._cluster = cluster
        self._disks = disks
        self._ledger = ledger
        self._faults = [fault for fault in self._all() if is_wanted(fault.name, wanted)]

    async def inject(self, seconds: float) -> None:
        """Inject each fault; its phase takes its part of the time, and longer where it is not over by then."""
        for fault in self._faults:
            await self._phase(fault, seconds / len(self._faults))

    @asynccontextmanager
    async def supervised(self) -> AsyncIterator[None]:
        """Until the end of the block, start processes again that end by themselves, as an orchestrator does."""
        supervising = asyncio.create_task(self._supervise())
        self._installation.supervised = True
        try:
            yield
        finally:
            self._installation.supervised = False
            supervising.cancel()
            await asyncio.wait([supervising])

    async def _supervise(self) -> None:
        while True:
            await asyncio.sleep(_SUPERVISED_S)
            for name, why in self._installation.restart_ended(*self._installation.names).items():
                self.ended[f"{name} with {why}"] += 1
                self._ledger.write("ended by itself", target=name, why=why)

    async def _phase(self, fault: Fault, seconds: float) -> None:
        begun_ms, end = now_ms(), asyncio.get_running_loop().time() + seconds
        self._ledger.write("phase", fault=fault.name)
        await asyncio.sleep(_BEFORE_S)
        await fault.inject()
        self._ledger.write("healed", fault=fault.name)
        await asyncio.to_thread(self._installation.wait_ready)
        await asyncio.sleep(max(_AFTER_S, end - asyncio.get_running_loop().time()))
        self.done[fault.name] += 1
        self.phases.append(Phase(fault.name, begun_ms, now_ms()))

    def _all(self) -> Iterator[Fault]:
        yield Fault("none", self._nothing)
        if self._installation.of_former_version:
            for role in UPGRADE_ORDER:
                yield Fault(f"{UPGRADE} {role}", partial(self._upgrade, role))
        for role in ROLES:
            yield Fault(f"restart {role}", partial(self._restart, role))
        for role in ROLES:
            yield Fault(f"kill {role}", partial(self._kill, role))
        for role in ROLES:
            yield Fault(f"pause {role}", partial(self._pause, role))
        for role in CUT_OFF:
            yield Fault(cut_off(role), partial(self._cut_off, role))
        for name in self._installation.clocks:
            for ahead_s in _AHEAD_S:
                yield Fault(f"clock {ahead_s:+} s {name}", partial(self._set_clock, name, ahead_s))
        for role in self._disks:
            yield Fault(full_disk(role), partial(self._fill_disk, role))
        if len(self._cluster.brokers) > 1:
            yield Fault("broker killed", self._kill_broker)
            yield Fault("leader paused", self._pause_leader)
            yield Fault("two brokers lost", self._lose_two_brokers)

    async def _nothing(self) -> None:
        """Inject nothing: the phase without a fault, for comparison."""

    async def _upgrade(self, role: str) -> None:
        """Start the role's processes again with the code of this version, one after the other, its owner last."""
        for name in reversed(await self._of_role(role)):
            await asyncio.to_thread(self._installation.stop, name)
            self._installation.of_former_version.discard(name)
            await asyncio.to_thread(self._installation.start, name)

    async def _restart(self, role: str) -> None:
        for name in await self._of_role(role):
            await asyncio.to_thread(self._installation.stop, name)
            await asyncio.to_thread(self._installation.start, name)

    async def _kill(self, role: str) -> None:
        name = (await self._of_role(role))[0]
        await asyncio.to_thread(self._installation.kill, name)
        await asyncio.sleep(_DOWN_S)
        await asyncio.to_thread(self._installation.start, name)

    async def _pause(self, role: str) -> None:
        name = (await self._of_role(role))[0]
        self._installation.signal(name, signal.SIGSTOP)
        await asyncio.sleep(_PAUSED_S)
        self._installation.signal(name, signal.SIGCONT)

    async def _cut_off(self, role: str) -> None:
        name = next(name for name in await self._of_role(role) if name in PROXIED)
        self._cluster.cut_off(PROXIED[name])
        await asyncio.sleep(_BROKEN_S)
        self._cluster.connect(PROXIED[name])

    async def _set_clock(self, name: str, ahead_s: int) -> None:
        self._installation.clocks[name].set(ahead_s)
        await asyncio.sleep(_BROKEN_S)
        self._installation.clocks[name].set(0)

    async def _fill_disk(self, role: str) -> None:
        self._disks[role].fill()
        await asyncio.sleep(_BROKEN_S)
        self._disks[role].free()

    async def _of_role(self, role: str) -> list[str]:
        return await asyncio.to_thread(self._installation.of_role, role)

    async def _kill_broker(self) -> None:
        broker = self._cluster.brokers[0]
        await asyncio.to_thread(broker.kill)
        await asyncio.sleep(_BROKER_BROKEN_S)
        await asyncio.to_thread(broker.start)

    async def _pause_leader(self) -> None:
        leader = await asyncio.to_thread(self._cluster.leader, _COMMANDS)
        leader.pause()
        await asyncio.sleep(_BROKER_BROKEN_S)
        leader.resume()

    async def _lose_two_brokers(self) -> None:
        lost = self._cluster.brokers[1:]
        for broker in lost:
            await asyncio.to_thread(broker.kill)
        await asyncio.sleep(_BROKER_BROKEN_S)
        for broker in lost:
            broker.launch()
        for broker in lost:
            await asyncio.to_thread(broker.wait_until_ready)
