"""The service's roles in simulated processes, each instance on a machine of its own."""

import asyncio
import traceback
from collections.abc import Sequence
from contextvars import Context
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from services.domain.role import RoleDefinition
from services.domain.role_context import ROLES_WITH_STANDBYS, context_on
from services.domain.settings import Settings
from services.log.port import Log
from services.net.rpc.server import Server as GrpcServer
from services.process.runner import run
from services.replica.health import Health
from services.replica.membership import Membership, state_directory_id
from services.replica.replay import ReplayComparison, ReplaySource, copy_state
from tests.simulation.kernel.disk import FULL, Disk
from tests.simulation.kernel.installation import Installation, process_name
from tests.simulation.kernel.network.channels import Network, Server
from tests.simulation.kernel.process import Process
from tests.simulation.kernel.world import LoggedError

_MOST_COPIES, _COPIED = 3, 0.3
RESTART_S = 2.0
"""How long after its end a process is started again, as a service manager does."""

ZONE = "Asia/Shanghai"


_SUPERSEDED = (
    "another process says in the log that it owns the partitions of delivery",
    "another process of the role delivery has taken over",
)


def is_superseded(error: LoggedError) -> bool:
    """Return whether the error is that of an owner of delivery that ends because it has a successor."""
    return any(text in error.details for text in _SUPERSEDED)


class RoleHost:
    """A machine that runs one instance of a role, and starts it again whenever it has ended.

    `settings` are the role's, apart from those that the installation sets. `process` is the latest one. While
    `is_disk_full`, files cannot be written; a process that ends because of that is started again. Machines of one shard
    have different names.
    """

    def __init__(
        self,
        installation: Installation,
        role: RoleDefinition[Any],
        shard: int = 0,
        name: str | None = None,
        **settings: Any,
    ) -> None:
        world = installation.world
        self.name = name or process_name(role.name, shard)
        self.role = role
        self.clock = world.clock()
        self._installation = installation
        self._world = world
        self._shard = shard
        self._settings = settings
        self._random = world.random(f"host {self.name}")
        self._disk = Disk(world.directory / self.name, self._random)
        self._copying = world.random(f"copies of {self.name}")
        world.at_snapshot[self.name] = self._keep_copy
        self._is_wanted = True
        self._may_run = asyncio.Event()
        self._may_run.set()
        self.is_disk_full = self._was_disk_full = False
        self._second_processes = 0
        self._left: list[tuple[Path, int]] = []
        self._outages: list[tuple[float, float]] = []
        self._down_since_s: float | None = world.loop.time()
        self._down_s = 0.0
        self._begin()

    def _begin(self) -> None:
        self._was_disk_full = self.is_disk_full
        self.process = self._world.process(self.name, lambda: self.is_disk_full)
        self._ready, self._stopping, self._ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._leave = self._disk.after_stop
        self.process.at_death(self._ended.set)

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set() and self.process.is_alive

    def settings(self, data: Path | None = None) -> Settings:
        """Return the settings of the present process, or those of one that had its files in `data`."""
        settings: Settings = self.role.settings(
            data_dir=str(data or self._disk.path),
            partitions=self._installation.broker.partitions,
            shard=self._shard,
            shards=self._installation.shards[self.role.name],
            timezone=ZONE,
            **self._settings,
        )
        return settings

    @property
    def outages(self) -> Sequence[tuple[float, float]]:
        """From when until when no process of this machine was ready."""
        if self._down_since_s is None:
            return self._outages
        return [*self._outages, (self._down_since_s, self._world.loop.time())]

    async def run(self) -> None:
        """Run one process after the other until `stop` is called."""
        while True:
            self.process.start(self._run_role(self.process, self._disk, self._ready, self._ended))
            await self._ended.wait()
            if self._down_since_s is None:
                self._down_since_s = self._world.loop.time()
            self.process.kill()
            if self._is_wanted:
                self._left.append((self._disk.path, self._installation.shards[self.role.name]))
                self._leave()
                await asyncio.sleep(max(self._down_s, RESTART_S * (0.5 + self._random.random())))
                self._down_s = 0.0
                await self._may_run.wait()
            if not self._is_wanted:
                return
            self._begin()

    def fill_disk(self) -> None:
        """Let files not be written until `is_disk_full` is set back; the process may end because of that later too."""
        self.is_disk_full = self._was_disk_full = True

    def kill(self) -> None:
        """End the process as SIGKILL does."""
        self.process.kill()

    def stay_down(self, seconds: float) -> None:
        """End the process as SIGKILL does, and start it again only after this time."""
        self._down_s = seconds
        self.process.kill()

    def cut_power(self) -> None:
        """End the process, and lose what its disk has not synced."""
        self._leave = self._disk.after_power_cut
        self.process.kill()

    def lose_disk(self) -> None:
        """End the process and lose its files."""
        self._leave = self._disk.lose
        self.process.kill()

    def upgrade(self) -> None:
        """End the process; the next one is of a version that stores its state in another form."""
        self._leave = self._disk.after_upgrade
        self.process.kill()

    def restart(self, seconds: float) -> None:
        """Stop the process as SIGTERM does, or kill it if that takes longer than this; then start another one."""
        self._stopping.set()
        self._world.loop.call_later(seconds, self.process.kill, context=Context())

    def hold(self) -> None:
        """End the process, and start no other one until `release`."""
        self._may_run.clear()
        self.process.kill()

    def release(self) -> None:
        self._may_run.set()

    def run_second(self, seconds: float) -> None:
        """Run another process of this instance, on files of its own, for so long or until it ends by itself.

        It takes over the calls meanwhile.
        """
        self._second_processes += 1
        process = self._world.process(self.name)
        disk = Disk(self._world.directory / f"{self.name}-second-{self._second_processes}", self._random)
        running = process.start(self._run_role(process, disk, asyncio.Event(), asyncio.Event()))
        running.add_done_callback(lambda _: process.kill(), context=Context())
        self._world.loop.call_later(seconds, process.kill, context=Context())

    async def stop(self, seconds: float = 60) -> None:
        """Stop the process as SIGTERM does; kill it if it takes longer than this."""
        self._is_wanted = False
        self._may_run.set()
        self._stopping.set()
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            self._report(f"did not stop within {seconds:g} s")
            self.process.kill()

    def _keep_copy(self) -> None:
        """Keep a copy of the files for `verify` now and then, after a snapshot has been written."""
        if len(self._left) < _MOST_COPIES and self._copying.random() < _COPIED:
            copy = self._world.directory / f"{self.name}-copy-{len(self._left)}"
            copy_state(self._disk.path, copy)
            self._left.append((copy, self._installation.shards[self.role.name]))

    async def verify(self, log: Log) -> Sequence[ReplayComparison]:
        """Compare the state on the disk with one rebuilt from the log; so too copies, and what killed processes left.

        Each is brought up to the end of the log first; those of another number of instances are left out. The process
        must have been stopped.
        """
        assert self.role.replay is not None
        ends, now = await log.ends(self._installation.partitions()), self._installation.shards[self.role.name]
        return [
            await self.role.replay.verify(self.settings(data), ReplaySource(log, ends))
            for data, shards in (*self._left, (self._disk.path, now))
            if shards == now
        ]

    async def _run_role(self, process: Process, disk: Disk, ready: asyncio.Event, ended: asyncio.Event) -> None:
        """Run in the process what `carillon serve ROLE` runs."""
        try:
            await self._serve(process, disk, ready)
            if not self._stopping.is_set():
                self._report("ended by itself")
        except Exception as error:
            self._world.trace.event("exit", error=type(error).__name__)
            self._world.trace.note("exit", error="".join(traceback.format_exception(error)))
            if not (self._was_disk_full and FULL in str(error)):
                self._report("ended with an error", repr(error))
        ended.set()

    async def _serve(self, process: Process, disk: Disk, ready: asyncio.Event) -> None:
        installation = self._installation
        log, keys = installation.log(), installation.keys.only(self.role.keys)
        health = Health(self.clock)
        async with context_on(log, self.clock, installation.peers(), keys, health) as context:
            settings = self.settings(disk.path)
            if installation.has_owners and self.role.name in ROLES_WITH_STANDBYS:
                directory_id = state_directory_id(settings.state_dir(self.role.name))
                membership = Membership(log, self.clock, self.role.name, self._shard, self.name, directory_id)
                context = replace(context, membership=membership)
            built = self.role.build(settings, context)
            health.watch(built.followers)
            server = Server(process)
            for add_to in built.servicers:
                add_to(cast(GrpcServer, server))
            await run(
                [*built.services, health],
                on_ready=lambda: self._note_ready(ready),
                listeners=[Listener(installation.network, server)],
                stopping=self._stopping,
            )

    def _report(self, text: str, details: str = "") -> None:
        self._world.errors.append(LoggedError(self.name, text, details, self._world.loop.time()))

    def _note_ready(self, ready: asyncio.Event) -> None:
        self._world.trace.event("ready")
        ready.set()
        if self._down_since_s is not None:
            self._outages.append((self._down_since_s, self._world.loop.time()))
            self._down_since_s = None


class Listener:
    """A service that answers the calls of a process."""

    def __init__(self, network: Network, server: Server) -> None:
        self.name = f"{server.process.name} calls"
        self._network = network
        self._server = server

    async def run(self, ready: asyncio.Event) -> None:
        self._network.listen(self._server)
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            self._network.end_listening(self._server)
