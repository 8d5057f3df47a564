"""Announces the status of this process at short intervals: in the log, or to the status board of the same process."""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Mapping

from protos.runtime.v1.log_pb2 import Meta
from protos.runtime.v1.processes_pb2 import ProcessFact, ProcessLeft, ProcessStatus
from services.runtime.errors import CarillonError
from services.runtime.log.port import Log, NewRecord
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger

PROCESSES_TOPIC = "processes"
INTERVAL_S = 5
"""Interval at which a process announces its status."""

_LAST_RECORD_S = 2.0

Publish = Callable[[ProcessFact], Awaitable[None]]


def process_id() -> str:
    """Return a random id for a process that starts now."""
    return secrets.token_hex(8)


class Announcer:
    """Service that publishes statuses, by the id of their process, and at its end that these processes have left.

    People alone read them, so a status that cannot be published is left out.
    """

    name = "announcer"

    def __init__(
        self, statuses: Callable[[], Mapping[str, ProcessStatus]], publish: Publish, clock: Clock, writer: str
    ) -> None:
        self._statuses = statuses
        self._publish = publish
        self._clock = clock
        self._writer = writer
        self._announced: set[str] = set()

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        try:
            while True:
                for process, status in self._statuses().items():
                    self._announced.add(process)
                    await self._try(ProcessFact(process=process, status=status))
                await self._clock.sleep_until(self._clock.now_ms() + INTERVAL_S * 1000)
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_RECORD_S):
                    for process in self._announced:
                        await self._try(ProcessFact(process=process, left=ProcessLeft()))

    async def _try(self, fact: ProcessFact) -> None:
        fact.meta.CopyFrom(Meta(event_id=secrets.token_bytes(16), time_ms=self._clock.now_ms(), writer=self._writer))
        try:
            await self._publish(fact)
        except CarillonError as error:
            logger.debug("the state of this process cannot be announced", error=str(error))


def to_log(log: Log) -> Publish:
    """Return a function that appends facts to the topic `processes`."""

    async def publish(fact: ProcessFact) -> None:
        await log.append([NewRecord(PROCESSES_TOPIC, 0, fact.process.encode(), fact.SerializeToString())])

    return publish
