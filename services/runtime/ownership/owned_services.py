"""Services that run only while their process owns its partitions."""

import asyncio
from collections.abc import Sequence

from services.runtime.ownership.tenure import Tenure
from services.runtime.process.runner import Service, run


class OwnedServices:
    """A service that starts others, in order, once the tenure begins, and stops them in reverse at its own end.

    A standby counts as ready without them. An error of one of them is raised: the process ends, and so does its tenure.
    """

    def __init__(self, name: str, tenure: Tenure, services: Sequence[Service]) -> None:
        self.name = name
        self._tenure = tenure
        self._services = services

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        await self._tenure.wait()
        await run(self._services, lambda: None, stopping=asyncio.Event())
