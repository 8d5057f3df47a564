"""A device of the Python SDK that reports its notifications as shown and queues its events."""

import asyncio
import random
from collections.abc import Callable, Mapping

from carillon_device import Device, Frame, MemoryStorage, Push, Saved


class VirtualDevice(Device):
    """A device whose app reports each notification as shown; `events` receives all pushes and events in order."""

    def __init__(
        self,
        url: str,
        appkey: str,
        *,
        token: str | None = None,
        key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.events: asyncio.Queue[Frame] = asyncio.Queue()
        super().__init__(
            url,
            appkey,
            storage=MemoryStorage(Saved(token, key)),
            attributes=attributes,
            on_push=self._shown,
            on_event=self.events.put_nowait,
            random=random,
        )

    def _shown(self, push: Push) -> None:
        self.events.put_nowait({**push})
        if push["is_notif"]:
            self.report("shown", push["msgid"])
