"""Removes tokens that Apple calls invalid from the registry, in batches."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from protos.registry.v1.devices_pb2 import DeviceCommand, RemoveDevice
from services.domain.command_writer import Command, CommandWriter, device_command
from services.runtime.errors import CarillonError
from services.runtime.process import background
from services.runtime.process.logs import logger

_BATCH_SIZE = 1000


class DeadToken(NamedTuple):
    """A token to remove. `registered_before_ms`: keep it if it registered later; 0: remove it in any case.

    `done` is called when the command is in the log. It is also called when the append failed: Apple refuses the next
    push to the token again.
    """

    appkey: str
    partition: int
    token: str
    reason: str
    registered_before_ms: int
    done: Callable[[], None]


class DeadTokens:
    """Appends removal commands to the log from one task, so that tokens found meanwhile form the next batch."""

    def __init__(self, writer: CommandWriter) -> None:
        self._writer = writer
        self._queue: list[DeadToken] = []
        self._writing: asyncio.Task[None] | None = None

    def remove(self, dead: DeadToken) -> None:
        self._queue.append(dead)
        if self._writing is None or self._writing.done():
            self._writing = background.start("removal of invalid tokens", self._write())

    async def close(self) -> None:
        """Return once the queue is written."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    async def _write(self) -> None:
        while self._queue:
            batch, self._queue = self._queue[:_BATCH_SIZE], self._queue[_BATCH_SIZE:]
            by_token = {(dead.appkey, dead.token): _command(dead) for dead in batch}
            try:
                await self._writer.append(list(by_token.values()))
            except CarillonError as error:
                logger.warning("invalid tokens stay until the next push to them", count=len(by_token), error=str(error))
            for dead in batch:
                dead.done()


def _command(dead: DeadToken) -> Command:
    remove = RemoveDevice(reason=dead.reason, registered_before_ms=dead.registered_before_ms)
    return device_command(DeviceCommand(appkey=dead.appkey, token=dead.token, remove=remove))
