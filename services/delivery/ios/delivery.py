"""Sends pushes for iOS apps through Apple's service: there is no connection to wait for, and no acknowledgement."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from functools import partial

from services.delivery.apns.senders import CredentialsOf, Senders
from services.delivery.ios.app_sender import IosApp, Tools
from services.delivery.ios.dead_tokens import DeadTokens
from services.delivery.ios.device_tokens import DeviceTokens
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.pushes import StartedPush
from services.domain.apps import AppDirectory
from services.domain.command_writer import CommandWriter
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger
from services.runtime.rpc.peers import Peers

_GRACE_S = 2.0
"""At the end: for answers to what was sent, so that it need not be sent again."""


class IosDelivery:
    """A service. One task an app; what was not accepted for Apple's sake is tried again until the push expires."""

    name = "delivery ios"

    def __init__(
        self,
        writer: CommandWriter,
        state: DeliveryState,
        recorder: OutcomeRecorder,
        open_senders: Callable[[], Senders],
        credentials_of: CredentialsOf,
        peers: Peers,
        apps: AppDirectory,
        clock: Clock,
        shards: int,
    ) -> None:
        self._state = state
        self._open_senders = open_senders
        self._dead = DeadTokens(writer)
        tokens = DeviceTokens(peers)
        self._tools = partial(Tools, recorder, credentials_of, self._dead, tokens, state.badges, apps, clock, shards)
        self._senders: Senders | None = None
        self._apps: dict[str, IosApp] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being sent or waits to be sent again."""
        return all(app.is_idle for app in self._apps.values())

    def start(self, push: StartedPush, partitions: Iterable[int]) -> None:
        """Send the push to everyone in its audience there who has not got it. Once for each partition."""
        self._app(push.send.appkey).start(push, partitions)

    async def run(self, ready: asyncio.Event) -> None:
        """Take up what an earlier process left; at the end, stop sending. Nothing is started before it runs."""
        self._senders = self._open_senders()
        for push in self._state.started.values():
            if push.is_ios:
                self.start(push, push.active_parts)
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            await self._stop(self._senders)

    async def _stop(self, senders: Senders) -> None:
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_S):
                for app in self._apps.values():
                    await app.quiet.wait()
        for app in self._apps.values():
            app.close()
        await self._dead.close()
        await senders.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _app(self, appkey: str) -> IosApp:
        app = self._apps.get(appkey)
        if app is None:
            assert self._senders is not None
            app = self._apps[appkey] = IosApp(appkey, self._tools(self._senders))
            task = asyncio.create_task(app.run())
            self._tasks.add(task)
            task.add_done_callback(self._ended)
        return app

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("an iOS app's pushes stopped; they go on after the next start", exc_info=error)
