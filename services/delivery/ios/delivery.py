"""Sends pushes for iOS apps through Apple's push service, one task per app."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from functools import partial

from services.delivery.apns.sender_pool import CredentialsSource, SenderPool
from services.delivery.ios.app_health import Stopped
from services.delivery.ios.app_sender import IosAppSender, IosDependencies
from services.delivery.ios.device_tokens import DeviceTokens
from services.delivery.ios.invalid_tokens import InvalidTokenRemover
from services.delivery.ios.push_progress import PayloadOf
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.pushes import StartedPush
from services.domain.apps import AppDirectory
from services.domain.command_writer import CommandWriter
from services.runtime.process import background
from services.runtime.process.clock import Clock
from services.runtime.process.metrics import APNS_MOSTLY_BAD
from services.runtime.rpc.peers import Peers

_DRAIN_S = 2.0
"""At the stop: time for Apple's responses to pushes in flight, so that these are not sent again."""


class IosDelivery:
    """Service that sends pushes to iOS devices; it retries those that fail for a temporary reason until they expire."""

    name = "delivery ios"

    def __init__(
        self,
        writer: CommandWriter,
        state: DeliveryState,
        recorder: OutcomeRecorder,
        open_senders: Callable[[], SenderPool],
        credentials_of: CredentialsSource,
        peers: Peers,
        apps: AppDirectory,
        clock: Clock,
        shards: int,
        payload_of: PayloadOf,
    ) -> None:
        self._state = state
        self._apps_directory = apps
        self._open_senders = open_senders
        self._invalid_tokens = InvalidTokenRemover(writer)
        tokens = DeviceTokens(peers)
        self._dependencies = partial(
            IosDependencies,
            recorder,
            credentials_of,
            self._invalid_tokens,
            tokens,
            state.badges,
            state.bad_tokens,
            apps,
            clock,
            shards,
            payload_of,
        )
        self._senders: SenderPool | None = None
        self._apps: dict[str, IosAppSender] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_idle(self) -> bool:
        """Whether no push is in progress or waits for a retry."""
        return all(app.is_idle for app in self._apps.values())

    def start(self, push: StartedPush, partitions: Iterable[int]) -> None:
        """Send the push to the devices of its audience in these partitions; call it once for each partition."""
        self._app(push.send.appkey).start(push, partitions)

    async def run(self, ready: asyncio.Event) -> None:
        """Resume the pushes in the state, then run until cancelled. `start` may be called once it is ready."""
        self._senders = self._open_senders()
        self._state.bad_tokens.watch(self._tokens_changed)
        for push in self._state.started.of_ios():
            self.start(push, push.active_parts)
        ready.set()
        try:
            while True:
                await self._apps_directory.pauses_changed.wait()
                for app in self._apps.values():
                    app.wake_up()
        finally:
            await self._stop(self._senders)
            self._state.bad_tokens.unwatch()

    def stopped(self, appkey: str) -> Stopped | None:
        """Return since when and why the app's pushes wait, where Apple does not accept its key."""
        app = self._apps.get(appkey)
        return app.stopped if app else None

    async def _stop(self, senders: SenderPool) -> None:
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                for app in self._apps.values():
                    await app.drained()
        for app in self._apps.values():
            app.close()
        await self._invalid_tokens.close()
        await senders.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _tokens_changed(self, appkey: str, is_mostly_bad: bool) -> None:
        APNS_MOSTLY_BAD.inc(1 if is_mostly_bad else -1)
        if is_mostly_bad and (app := self._apps.get(appkey)) is not None:
            app.alarm_bad_tokens()

    def _app(self, appkey: str) -> IosAppSender:
        app = self._apps.get(appkey)
        if app is None:
            assert self._senders is not None
            app = self._apps[appkey] = IosAppSender(appkey, self._dependencies(self._senders))
            task = background.start_endless(f"sender of iOS app {appkey}", app.run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return app
