"""Targeting as a service: restores its snapshots, follows the log, and saves again from time to time and at the end."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from services.runtime.errors import UnavailableError
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger
from services.runtime.projection.follower import Follower
from services.targeting.state import TargetingState
from services.targeting.store import Snapshots

Answer = TypeVar("Answer")


class Targeting:
    """Runs the follower of a state, and keeps the state's snapshots."""

    name = "targeting"

    def __init__(
        self, state: TargetingState, follower: Follower, snapshots: Snapshots, clock: Clock, snapshot_s: int
    ) -> None:
        self.state = state
        self._follower = follower
        self._snapshots = snapshots
        self._clock = clock
        self._snapshot_s = snapshot_s
        self._ready: asyncio.Event | None = None
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="targeting-snapshot")

    async def ask(self, question: Callable[..., Answer], *arguments: Any) -> Answer:
        """Put a question to the state as it is between two batches. UnavailableError: the log is not read yet."""
        if self._ready is None or not self._ready.is_set():
            raise UnavailableError("targeting is still reading the log, or is stopping; ask again")
        return await self._follower.ask(question, *arguments)

    async def run(self, ready: asyncio.Event) -> None:
        self._ready = ready
        await self._follower.ask(self._snapshots.restore)
        saving = asyncio.create_task(self._save_regularly())
        try:
            await self._follower.run(ready)
        except asyncio.CancelledError:
            self._ready = None
            saving.cancel()
            await self._on_disk_thread(self._snapshots.save)
            raise
        finally:
            self._ready = None
            saving.cancel()
            self._disk.shutdown()

    async def _save_regularly(self) -> None:
        while True:
            await self._clock.sleep_until(self._clock.now_ms() + self._snapshot_s * 1000)
            try:
                for number in self._snapshots.partitions:
                    if taken := await self._follower.ask(self._snapshots.take, number):
                        await self._on_disk_thread(self._snapshots.write, number, taken)
            except Exception as error:
                logger.error("targeting could not save a snapshot; it tries again later", exc_info=error)

    async def _on_disk_thread(self, work: Callable[..., None], *arguments: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._disk, work, *arguments)
