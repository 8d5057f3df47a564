"""Follows the topic `processes`, so that the status board has all processes of the installation."""

import asyncio

from protos.runtime.v1.processes_pb2 import ProcessFact
from services.runtime.log.port import LOG_UNAVAILABLE, Log, Partition
from services.runtime.process.retries import retry_until_available
from services.runtime.projection.dead_letters import UNUSABLE, leave_out
from services.runtime.status.announcer import PROCESSES_TOPIC
from services.runtime.status.status_board import StatusBoard

PROCESSES_PARTITION = Partition(PROCESSES_TOPIC, 0)

RECENT_RECORDS = 5_000
"""Number of latest records that are read at the start: ten minutes of forty processes."""


class StatusBoardFollower:
    """Service that applies the log's announcements to the status board. No other service waits until it is ready."""

    name = "board of processes"

    def __init__(self, log: Log, board: StatusBoard) -> None:
        self._log = log
        self._board = board

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        ends = await retry_until_available(LOG_UNAVAILABLE, lambda: self._log.ends([PROCESSES_PARTITION]))
        end = ends[PROCESSES_PARTITION]
        start = {PROCESSES_PARTITION: max(0, end - RECENT_RECORDS)}
        reader = await retry_until_available(LOG_UNAVAILABLE, lambda: self._log.open(start))
        try:
            while True:
                for record in await retry_until_available(LOG_UNAVAILABLE, reader.read):
                    try:
                        self._board.apply(ProcessFact.FromString(record.value), is_new=record.offset >= end)
                    except UNUSABLE as error:
                        leave_out(self.name, record, error)
        finally:
            await reader.close()
