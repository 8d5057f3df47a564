"""Takes tokens that Apple calls dead out of the registry, many at a time."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from protos.registry.v1.devices_pb2 import DeviceCommand, RemoveDevice
from services.domain.command_writer import Command, CommandWriter, device_command
from services.runtime.errors import CarillonError
from services.runtime.process.logs import logger

_BATCH = 1000


class DeadToken(NamedTuple):
    """`registered_before_ms`: only if it registered earlier, 0: in any case. `done` is called when the command is in
    the log, or could not be written: then the next push to the token finds it dead again."""

    appkey: str
    partition: int
    token: str
    reason: str
    registered_before_ms: int
    done: Callable[[], None]


class DeadTokens:
    def __init__(self, writer: CommandWriter) -> None:
        self._writer = writer
        self._found: list[DeadToken] = []
        self._writing: asyncio.Task[None] | None = None

    def add(self, dead: DeadToken) -> None:
        self._found.append(dead)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Return once everything is written."""
        if self._writing is not None:
            await self._writing

    async def _write(self) -> None:
        while self._found:
            batch, self._found = self._found[:_BATCH], self._found[_BATCH:]
            once = {(dead.appkey, dead.token): _command(dead) for dead in batch}
            try:
                await self._writer.append(list(once.values()))
            except CarillonError as error:
                logger.warning("dead tokens stay until the next push to them", count=len(once), error=str(error))
            for dead in batch:
                dead.done()
        self._writing = None


def _command(dead: DeadToken) -> Command:
    remove = RemoveDevice(reason=dead.reason, registered_before_ms=dead.registered_before_ms)
    return device_command(DeviceCommand(appkey=dead.appkey, token=dead.token, remove=remove))
