"""Removes tokens that Apple calls invalid from the registry, in batches."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from protos.registry.v1.devices_pb2 import DeviceCommand, RemoveDevice
from services.domain.command_writer import Command, CommandWriter, device_command
from services.errors import CarillonError
from services.process import background
from services.process.logs import logger

_BATCH_SIZE = 1000


class TokenRemoval(NamedTuple):
    """The removal of a token that Apple calls invalid.

    `registered_before_ms`: the token stays if it registered later; 0: it is removed in any case.

    `done` is called when the command is in the log. It is also called when the append failed: Apple refuses the next
    push to the token again.
    """

    appkey: str
    partition: int
    token: str
    reason: str
    registered_before_ms: int
    done: Callable[[], None]


class InvalidTokenRemover:
    """Appends removal commands to the log from one task, so that tokens found meanwhile form the next batch."""

    def __init__(self, writer: CommandWriter) -> None:
        self._writer = writer
        self._queue: list[TokenRemoval] = []
        self._writing: asyncio.Task[None] | None = None

    def remove(self, removal: TokenRemoval) -> None:
        self._queue.append(removal)
        if self._writing is None or self._writing.done():
            self._writing = background.start("removal of invalid tokens", self._write())

    async def close(self) -> None:
        """Return once the queue is written."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    async def _write(self) -> None:
        while self._queue:
            batch, self._queue = self._queue[:_BATCH_SIZE], self._queue[_BATCH_SIZE:]
            by_token = {(removal.appkey, removal.token): _command(removal) for removal in batch}
            try:
                await self._writer.append(list(by_token.values()))
            except CarillonError as error:
                logger.warning("invalid tokens stay until the next push to them", count=len(by_token), error=str(error))
            for removal in batch:
                removal.done()


def _command(removal: TokenRemoval) -> Command:
    remove = RemoveDevice(reason=removal.reason, registered_before_ms=removal.registered_before_ms)
    return device_command(DeviceCommand(appkey=removal.appkey, token=removal.token, remove=remove))
