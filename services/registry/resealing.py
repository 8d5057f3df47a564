"""Writes the devices from before records were sealed once more: sealed, and under keys without their tokens.

Compaction never compares a record under `APPKEY/TOKEN` with its successor under `APPKEY/NAME`. So each device is
written once more, and behind it an empty value under the former key, by which the log removes both.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from services.domain.ids import RecordStamp
from services.domain.sealing import is_name
from services.domain.topics import DEVICES, device_key
from services.errors import UnavailableError
from services.process.clock import Clock
from services.process.durable import written_beside
from services.process.logs import logger
from services.registry.rules import device_fact
from services.registry.store import DeviceTable
from services.replica.follower import Follower
from services.replica.store import Fact

PAGE = 500
"""Devices that are written in one transaction; commands are decided between two of them."""

PAGE_MS = 100
"""Time between two pages, so writing 10 million devices takes 33 minutes at least."""

PROGRESS_FILE = "resealed.json"
"""A file beside the state, and no part of it. Without it all devices are written again, which changes nothing."""


class _Progress(NamedTuple):
    """Up to which device all are written, by appkey, partition and number; `is_done`: all are."""

    after: tuple[str, int, int] | None = None
    is_done: bool = False


class ResealingWorker:
    """A service that writes all devices once more, from `begin` on, while the follower owns its partitions.

    After a kill it goes on behind the last page whose records are in the log.
    """

    name = "registry resealing"

    def __init__(self, follower: Follower, devices: DeviceTable, clock: Clock, directory: Path) -> None:
        self._follower = follower
        self._devices = devices
        self._clock = clock
        self._file = directory / PROGRESS_FILE
        self._stamp = RecordStamp("registry")
        self._sealing = asyncio.Event()
        self._progress = _Progress()
        self._next = _Progress()

    def has_ended(self) -> bool:
        """Return whether all devices are written. UnavailableError: the file of the progress cannot be read."""
        return self._progress.is_done or _load(self._file).is_done

    def begin(self) -> None:
        """Report that records are sealed from now on."""
        self._sealing.set()

    async def run(self, ready: asyncio.Event) -> None:
        """Write the devices, then wait for ever. UnavailableError: the file of the progress cannot be read."""
        ready.set()
        await self._sealing.wait()
        self._progress = _load(self._file)
        count = 0
        while not self._progress.is_done:
            ended = await self._follower.tenure.wait()
            while not (ended.is_set() or self._progress.is_done):
                await self._follower.write(self._next_page)
                self._progress = self._next
                _save(self._file, self._progress)
                count += PAGE
                await self._clock.sleep_until(self._clock.now_ms() + PAGE_MS)
        if count:
            logger.info("all devices are in the log sealed, and under keys without tokens")
        await asyncio.Event().wait()

    def _next_page(self) -> Sequence[Fact]:
        """Return the facts of the next devices. What is left of an erased one has a name for its token already."""
        found = self._devices.after(self._progress.after, PAGE)
        if not found:
            self._next = _Progress(self._progress.after, is_done=True)
            return ()
        last = found[-1]
        self._next = _Progress((last.appkey, last.partition, last.number))
        facts = []
        for device in found:
            if not is_name(device.token.partition("/")[0]):
                fact = device_fact(device)
                self._stamp.complete(fact.message.meta, self._clock.now_ms())
                facts += [fact, Fact(DEVICES, device.partition, device_key(device.appkey, device.token), None)]
        return facts


def _load(file: Path) -> _Progress:
    try:
        after, is_done = json.loads(file.read_bytes())
        return _Progress(tuple(after) if after else None, bool(is_done))
    except FileNotFoundError:
        return _Progress()
    except (OSError, ValueError) as error:
        raise UnavailableError(f"{file} cannot be read: {error}") from error


def _save(file: Path, progress: _Progress) -> None:
    with written_beside(file, json.dumps(progress).encode()) as fresh:
        os.replace(fresh, file)
