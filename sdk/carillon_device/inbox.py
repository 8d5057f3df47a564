"""From the connection to the app: each push once, in order, one at a time; saved, then acknowledged."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

from carillon_device.errors import UnavailableError
from carillon_device.frames import MAX_ACKNOWLEDGED, Frame, Push
from carillon_device.storage import Memory
from carillon_device.waits import CALLBACK_S, Sleep, within

MAX_WAITING = 1000

OnPush = Callable[[Push], Awaitable[None] | None]
OnEvent = Callable[[Frame], Awaitable[None] | None]

logger = logging.getLogger("carillon_device")


class Inbox:
    """Frames wait here for the app's callbacks. `acknowledge` gets the ids of pushes that are handled and saved."""

    def __init__(
        self,
        memory: Memory,
        on_push: OnPush | None,
        on_event: OnEvent | None,
        acknowledge: Callable[[list[int]], None],
        sleep: Sleep,
    ) -> None:
        self._memory = memory
        self._on_push = on_push
        self._on_event = on_event
        self._acknowledge = acknowledge
        self._sleep = sleep
        self._frames: asyncio.Queue[Frame] = asyncio.Queue(MAX_WAITING)
        self._handled: list[int] = []
        self._settling: asyncio.Task[None] | None = None

    def put(self, frame: Frame) -> bool:
        """False: too many are waiting, and this one is lost; a push comes again after the next connection."""
        if self._frames.full():
            return False
        self._frames.put_nowait(frame)
        return True

    async def run(self) -> None:
        while True:
            frame = await self._frames.get()
            if frame["type"] == "push":
                await self._push(frame)
            else:
                await self._called(self._on_event, frame)
            self._frames.task_done()

    async def empty(self) -> None:
        """Return when everything that came was handled, saved and acknowledged."""
        await self._frames.join()
        if self._settling is not None:
            await asyncio.wait([self._settling])

    async def _push(self, frame: Frame) -> None:
        msgid = frame["msgid"]
        if not self._memory.knows(msgid):
            if not await self._called(self._on_push, cast(Push, frame)):
                return
            self._memory.add(msgid)
        self._handled.append(msgid)
        if self._settling is None or self._settling.done():
            self._settling = asyncio.create_task(self._settle())

    async def _called(self, callback: Callable[[Any], Awaitable[None] | None] | None, frame: Frame | Push) -> bool:
        """False: the app failed on it, or took too long."""
        try:
            waiting = callback(frame) if callback is not None else None
            if inspect.isawaitable(waiting):
                await within(CALLBACK_S, waiting, self._sleep)
        except Exception:
            logger.exception("the app failed on a frame of type %s", frame["type"])
            return False
        return True

    async def _settle(self) -> None:
        """One write and one acknowledgement for all that was handled until now; again for what came meanwhile."""
        while self._handled:
            msgids, self._handled = self._handled, []
            try:
                await self._memory.save()
            except UnavailableError as error:
                logger.warning("%d pushes are not acknowledged: %s", len(msgids), error)
                continue
            for start in range(0, len(msgids), MAX_ACKNOWLEDGED):
                self._acknowledge(msgids[start : start + MAX_ACKNOWLEDGED])
