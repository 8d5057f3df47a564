"""The registry's tenure: the time in which one process answers for the partitions, the aliases and the apps."""

import asyncio

from services.errors import UnavailableError
from services.log.port import Log
from services.registry.app_epochs import AppEpochs
from services.registry.settings import ROLE_NAME
from services.replica.catch_up import goal_of_now
from services.replica.follower import Follower
from services.replica.tenure import Tenure


class RegistryTenure:
    """A service that begins a tenure when the device follower's has begun and the other states have caught up.

    The end of the log is looked up once no former owner answers any more. A state has caught up when it has applied all
    records before that end: then it holds everything that former owners have confirmed.
    """

    name = "registry tenure"

    def __init__(
        self,
        log: Log,
        devices: Follower,
        aliases: Follower,
        apps: AppEpochs | None,
    ) -> None:
        """`apps`: None where another shard changes the apps."""
        self._log = log
        self._devices = devices.tenure
        self._aliases = aliases
        self._apps = apps
        self._own = Tenure(None)

    @property
    def is_held(self) -> bool:
        return self._own.is_held and self._devices.is_held

    @property
    def has_standbys(self) -> bool:
        return self._devices.election is not None

    async def wait(self) -> None:
        """Return once the tenure has begun."""
        await self._own.wait()

    def check(self) -> None:
        """Check that this process owns the shard.

        NotOwnerError: another process owns it, or this one does not own it yet.
        """
        self._devices.check()
        self._own.check()

    async def check_query(self) -> None:
        """Check that this process may answer a query. NotOwnerError as for `check`."""
        await self._devices.check_query()
        self._own.check()

    def confirm(self) -> None:
        """Check after an operation that the process owned its partitions meanwhile.

        UnavailableError: another process may have taken over.
        """
        try:
            self.check()
        except UnavailableError as error:
            raise UnavailableError(f"another process may have taken over meanwhile: {error}") from None

    async def run(self, ready: asyncio.Event) -> None:
        if self._devices.election:
            ready.set()
        while True:
            ended = await self._devices.wait()
            await self._hold(ready, ended)

    async def _hold(self, ready: asyncio.Event, ended: asyncio.Event) -> None:
        """Hold the tenure until the device follower's has ended."""
        holding = asyncio.create_task(self._begin_and_repair(ready))
        ending = asyncio.create_task(ended.wait())
        try:
            await asyncio.wait([holding, ending], return_when=asyncio.FIRST_COMPLETED)
            if holding.done():
                holding.result()
        finally:
            self._own.end()
            for task in (holding, ending):
                task.cancel()
            await asyncio.wait([holding, ending])

    async def _begin_and_repair(self, ready: asyncio.Event) -> None:
        if self._apps and not await self._apps.begin():
            await asyncio.Event().wait()
        goal = await goal_of_now(self._log, ROLE_NAME, self._aliases.sources)
        await goal.wait_reached(self._aliases.applied)
        self._own.begin()
        ready.set()
        if self._apps:
            await self._apps.repair()
        else:
            await asyncio.Event().wait()
