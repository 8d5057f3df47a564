"""The queue of frames for the app: each push is handled once and in order, then saved, then acknowledged."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

from carillon_device.deadlines import CALLBACK_S, Sleep, within
from carillon_device.errors import UnavailableError
from carillon_device.frames import MAX_ACKNOWLEDGED, Frame, Push
from carillon_device.storage import DeviceState

MAX_QUEUED = 1000
"""Frames that may wait when a push comes."""

MAX_QUEUED_EVENTS = 100
"""How many more may wait when another frame comes, so that the app learns of connections while pushes wait."""

OnPush = Callable[[Push], Awaitable[None] | None]
OnEvent = Callable[[Frame], Awaitable[None] | None]

logger = logging.getLogger("carillon_device")


class Inbox:
    """Gives frames to the app's callbacks, one at a time. `acknowledge` gets the ids of handled and saved pushes."""

    def __init__(
        self,
        state: DeviceState,
        on_push: OnPush | None,
        on_event: OnEvent | None,
        acknowledge: Callable[[list[int]], None],
        sleep: Sleep,
    ) -> None:
        self._state = state
        self._on_push = on_push
        self._on_event = on_event
        self._acknowledge = acknowledge
        self._sleep = sleep
        self._frames: asyncio.Queue[Frame] = asyncio.Queue()
        self._waiting: set[int] = set()
        self._handled: list[int] = []
        self._acknowledging: asyncio.Task[None] | None = None

    def put(self, frame: Frame) -> bool:
        """Add a frame, unless it is a push that waits already.

        False: the queue is full, and the frame is dropped; a push comes again after a reconnect.
        """
        is_push = frame["type"] == "push"
        if is_push and frame["msgid"] in self._waiting:
            return True
        if self._frames.qsize() >= MAX_QUEUED + (0 if is_push else MAX_QUEUED_EVENTS):
            return False
        self._frames.put_nowait(frame)
        if is_push:
            self._waiting.add(frame["msgid"])
        return True

    async def run(self) -> None:
        while True:
            frame = await self._frames.get()
            if frame["type"] == "push":
                self._waiting.remove(frame["msgid"])
                await self._push(frame)
            else:
                await self._call(self._on_event, frame)
            self._frames.task_done()

    async def empty(self) -> None:
        """Return once every frame was handled, and every handled push saved and acknowledged."""
        await self._frames.join()
        if self._acknowledging is not None:
            await asyncio.wait([self._acknowledging])

    async def _push(self, frame: Frame) -> None:
        msgid = frame["msgid"]
        if not self._state.has(msgid):
            if not await self._call(self._on_push, cast(Push, frame)):
                return
            self._state.add(msgid)
        self._handled.append(msgid)
        if self._acknowledging is None or self._acknowledging.done():
            self._acknowledging = asyncio.create_task(self._acknowledge_handled())

    async def _call(self, callback: Callable[[Any], Awaitable[None] | None] | None, frame: Frame | Push) -> bool:
        """Call back. False: the app raised an error, or took too long."""
        try:
            waiting = callback(frame) if callback is not None else None
            if inspect.isawaitable(waiting):
                await within(CALLBACK_S, waiting, self._sleep)
        except Exception:
            logger.exception("the app failed on a frame of type %s", frame["type"])
            return False
        return True

    async def _acknowledge_handled(self) -> None:
        """Save and acknowledge all handled pushes together, until none was handled meanwhile."""
        while self._handled:
            msgids, self._handled = self._handled, []
            try:
                await self._state.save()
            except UnavailableError as error:
                logger.warning("%d pushes are not acknowledged: %s", len(msgids), error)
                continue
            for start in range(0, len(msgids), MAX_ACKNOWLEDGED):
                self._acknowledge(msgids[start : start + MAX_ACKNOWLEDGED])
