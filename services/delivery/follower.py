"""Follows push-commands: applies them to the state, and hands the requested pushes to the starter."""

import asyncio
from typing import Any

from services.delivery.event_writer import EventWriter
from services.delivery.starting import PushStarter
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.waiting_pushes import WaitingBytes
from services.domain.topics import PUSH_COMMANDS, decode
from services.errors import UnavailableError
from services.log.port import LOG_UNAVAILABLE, Log, Partition, Reader, Record, ends_of
from services.process import push_traces, stages
from services.process.clock import Clock
from services.process.logs import logger
from services.process.retries import retry_until_available
from services.replica.dead_letters import UNUSABLE, DeadLetters
from services.replica.health import Followed
from services.replica.positions import AppliedPositions

_COMMANDS = Partition(PUSH_COMMANDS.name, 0)
_BATCH = 200
_RETRY_MS = 500


class PushCommandFollower:
    """A service that follows push-commands; ready once the state holds the commands that the log held at the start.

    A command counts as applied once the state holds it. From then on a cancelled push is sent to no device, also while
    another push, or this one, waits for its audience. Requests that have not started are part of the state, so a
    restarted process starts them.
    """

    name = "delivery"

    def __init__(
        self,
        log: Log,
        events: EventWriter,
        state: DeliveryState,
        starter: PushStarter,
        waiting_bytes: WaitingBytes,
        clock: Clock,
        dead_letters: DeadLetters,
        applied: AppliedPositions,
    ) -> None:
        """`applied`: advanced by this object, and before its start by `Standby`."""
        self.applied = applied
        self._log = log
        self._events = events
        self._state = state
        self._starter = starter
        self._waiting_bytes = waiting_bytes
        self._clock = clock
        self._dead_letters = dead_letters

    @property
    def followed(self) -> Followed:
        """The positions and partitions by which the process's health check judges this follower."""
        return Followed(self.name, self.applied, [_COMMANDS])

    async def run(self, ready: asyncio.Event) -> None:
        start = self._events.offsets.get(_COMMANDS, 0)
        ends = await ends_of(self._log, self.name, [_COMMANDS])
        reader = await retry_until_available(
            LOG_UNAVAILABLE, lambda: self._log.open({_COMMANDS: start}), role=self.name
        )
        try:
            while True:
                self.applied.advance({_COMMANDS: self._events.offsets.get(_COMMANDS, 0)})
                if self.applied.has(_COMMANDS, ends[_COMMANDS] - 1):
                    ready.set()
                await self._waiting_bytes.wait_capacity()
                for record in await self._read(reader):
                    self._apply(record)
        finally:
            await reader.close()

    async def _read(self, reader: Reader) -> list[Record]:
        while True:
            try:
                return await reader.read(max_records=_BATCH)
            except UnavailableError as error:
                logger.warning(LOG_UNAVAILABLE, role=self.name, error=str(error))
                await self._clock.sleep_until(self._clock.now_ms() + _RETRY_MS)

    def _apply(self, record: Record) -> None:
        try:
            message = decode(record)
            self._events.apply(record, message)
        except UNUSABLE as error:
            self._dead_letters.add(record, error)
            self._events.skip(record)
        else:
            self._decide(message)

    def _decide(self, command: Any) -> None:
        if command.HasField("cancel"):
            self._starter.end_cancelled()
        elif (push := self._state.requested.get(command.send.msgid)) is not None:
            stages.note("followed", command.send.msgid)
            push_traces.read(command.meta.origin.trace, command.send.msgid)
            self._starter.add(push)
