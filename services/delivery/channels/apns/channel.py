"""Sends pushes of iOS apps through Apple's push service, one task for each app, and records the outcomes."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from services.delivery.channels.apns.invalid_tokens import InvalidTokenRemover, TokenRemoval
from services.delivery.channels.apns.messages import BadgeCounter, DeviceMessageBuilder, DeviceTokens
from services.delivery.channels.apns.provider_tokens import InvalidKeyError
from services.delivery.channels.apns.push_progress import ApnsMessage, PayloadOf
from services.delivery.channels.apns.queue import Chunk, DeviceDelays, InFlightWindow, PushSchedule
from services.delivery.channels.apns.reasons import (
    AppHealth,
    DelayDevice,
    RecordFailed,
    RecordSent,
    RemoveToken,
    ResendToSandbox,
    ResendWithNewToken,
    RetryLater,
    Step,
    Stopped,
    SuspectToken,
    react,
)
from services.delivery.channels.apns.request import ApnsResult
from services.delivery.channels.apns.sender import ApnsSender, CredentialsSource, SenderPool
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.state.bad_tokens import BadTokens
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.devices import Badges
from services.delivery.state.pushes import StartedPush
from services.domain.apns_credentials import ApnsCredentials, Environment
from services.domain.apps import AppDirectory
from services.domain.command_writer import CommandWriter
from services.domain.recorded_reasons import AcceptanceUnknown, FixedReason
from services.process import background
from services.process.clock import Clock
from services.process.crashpoint import Point, reached
from services.process.metrics import APNS_MOSTLY_BAD
from services.replica.peers import Peers

# One iOS app's pushes, with a bounded number in flight.

WINDOW = 2000
"""Messages of an app that wait for a connection or for Apple's response, at most."""

MAX_DELAYED_DEVICES = 10_000
"""Upper bound of delayed devices per app; beyond it, only the refused push is delayed, not the device."""

_SLICE = 500
_NO_KEY = (
    "the app has no APNs key, so its pushes wait; set one: "
    "carillon app set APPKEY --apns-key FILE --apns-key-id ID --apns-team ID"
)
_MOSTLY_BAD = (
    "Apple calls most tokens of the app bad; its devices stay registered. Does the environment fit its builds, and the "
    "bundle id? carillon app set APPKEY --apns-environment production|sandbox|both (see carillon app show APPKEY)"
)
_SENT = OutcomeKind.OUTCOME_KIND_SENT
_FAILED = OutcomeKind.OUTCOME_KIND_FAILED


@dataclass(frozen=True, slots=True)
class IosDependencies:
    """Collaborators that all of the process's `IosAppSender`s share."""

    recorder: OutcomeRecorder
    credentials_of: CredentialsSource
    invalid_tokens: InvalidTokenRemover
    tokens: DeviceTokens
    badges: Badges
    bad_tokens: BadTokens
    apps: AppDirectory
    clock: Clock
    shards: int
    payload_of: PayloadOf
    senders: SenderPool


class IosAppSender:
    """Sends the app's pushes in turns, so that a small push does not wait for a large one."""

    def __init__(self, appkey: str, shared: IosDependencies) -> None:
        self._appkey = appkey
        self._shared = shared
        self._work_available = asyncio.Event()
        wake_up = self._work_available.set
        self._schedule = PushSchedule(
            shared.clock, shared.shards, wake_up, lambda: self._credentials is not None, shared.payload_of
        )
        self._device_delays = DeviceDelays(MAX_DELAYED_DEVICES)
        self._window = InFlightWindow(WINDOW, wake_up)
        self._health = AppHealth(appkey, shared.clock)
        badges = BadgeCounter(appkey, shared.badges)
        self._builder = DeviceMessageBuilder(appkey, self, shared.tokens, badges, shared.recorder, shared.clock)
        self._closed = False

    @property
    def is_idle(self) -> bool:
        return self._schedule.is_idle

    @property
    def stopped(self) -> Stopped | None:
        """Since when and why the pushes wait, where Apple does not accept the app's key."""
        return self._health.stopped

    async def drained(self) -> None:
        """Return once no message waits for Apple's response."""
        await self._window.empty.wait()

    def wake_up(self) -> None:
        """Look again for messages to send, because the app may have been resumed."""
        self._work_available.set()

    def start(self, push: StartedPush, partitions: Iterable[int]) -> None:
        self._schedule.start(push, partitions)

    async def run(self) -> None:
        while True:
            await self._work_available.wait()
            self._work_available.clear()
            while await self._send_some():
                pass

    def alarm_bad_tokens(self) -> None:
        """Log that Apple calls most of the app's tokens bad."""
        judged = self._shared.bad_tokens.mostly_bad(self._appkey)
        self._health.alarm(_MOSTLY_BAD, judged.reason if judged else "")

    def close(self) -> None:
        """Ignore responses from now on: their pushes are sent again after the next start."""
        self._closed = True
        self._health.close()
        self._schedule.close()

    # --- choosing what to send

    async def _send_some(self) -> bool:
        """Send some messages or chunks; False if there is no capacity or nothing to send."""
        self._schedule.collect_due()
        free = 0 if self._is_stopped else self._window.free(self._health.is_probing)
        if free <= 0:
            return False
        ready = self._schedule.take_ready(free)
        for message in ready:
            self._submit(message)
        if ready:
            return True
        chunks = self._schedule.take_chunks(min(free, _SLICE))
        if chunks:
            await self._shared.recorder.wait_capacity()
            await self._send_chunks(chunks)
        return bool(chunks)

    # --- sending

    async def _send_chunks(self, chunks: Sequence[Chunk]) -> None:
        """Send to the chunks' devices; devices whose token cannot be looked up now wait for the next pass."""
        credentials = self._credentials
        if not credentials:
            self._health.alarm(_NO_KEY)
        devices = await self._builder.look_up(chunks) if credentials else {}
        for chunk in chunks:
            in_partition = devices.get(chunk.partition)
            if in_partition is None or credentials is None:
                chunk.progress.needs_pass = True
            else:
                for message in self._builder.messages(chunk, in_partition, credentials):
                    self._start(message)
            self._schedule.release(chunk.progress)

    def _start(self, message: ApnsMessage) -> None:
        message.progress.in_flight += 1
        if message.push.token:
            self._submit(message)
        else:
            self._record(message, _FAILED, FixedReason.REMOVED)

    def _submit(self, message: ApnsMessage) -> None:
        """Hand the message to the APNs sender, unless its device is delayed or there is no usable key."""
        until_ms = self._device_delays.until_ms(message.push.token, self._now_ms)
        if until_ms is not None:
            self._schedule.postpone(message, until_ms)
            return
        sender = self._sender(message)
        if sender is None:
            self._take_step(message, RetryLater(message.history.next_backoff_ms))
            return
        self._window.enter()
        reached(Point.APNS_SENDING)
        sender.submit(message)

    def _sender(self, message: ApnsMessage) -> ApnsSender | None:
        credentials = self._credentials
        try:
            return self._shared.senders.get(credentials, message.history.sandbox) if credentials else None
        except InvalidKeyError as error:
            self._health.alarm(str(error))
            return None

    # --- callbacks of messages

    def is_wanted(self, message: ApnsMessage) -> bool:
        return not self._is_stopped and message.is_pending(self._now_ms)

    def skipped(self, message: ApnsMessage) -> None:
        self._window.leave()
        if message.is_pending(self._now_ms):
            self._schedule.resend(message)
        elif message.expires_ms <= self._now_ms:
            self._expire(message)
        else:
            self._schedule.release(message.progress)

    def answered(self, message: ApnsMessage, result: ApnsResult) -> None:
        if self._closed:
            return
        reached(Point.APNS_ANSWERED)
        self._window.leave()
        following = react(result, message.history, self._uses_both)
        if following.alarm:
            self._health.alarm("Apple refuses pushes", result.reason)
        probe_ms = self._health.apply(following.circuit, result.reason)
        if probe_ms is not None:
            self._schedule.wake_at(probe_ms)
        self._take_step(message, following.step)

    # --- next steps

    def _take_step(self, message: ApnsMessage, step: Step) -> None:
        message.history = message.history.apply(step)
        match step:
            case RecordSent():
                self._record(message, _SENT, badge=message.badge)
            case RecordFailed(reason):
                self._record(message, _FAILED, reason)
            case RemoveToken(reason, registered_before_ms):
                self._remove_token(message, reason, registered_before_ms)
            case SuspectToken(reason):
                self._suspect_token(message, reason)
            case ResendToSandbox() | ResendWithNewToken():
                self._schedule.resend(message)
            case DelayDevice(backoff_ms):
                self._device_delays.delay(message.push.token, self._now_ms + backoff_ms, self._now_ms)
                self._retry(message, backoff_ms)
            case RetryLater(backoff_ms):
                self._retry(message, backoff_ms)
            case _:
                assert_never(step)

    def _retry(self, message: ApnsMessage, backoff_ms: int) -> None:
        due_ms = self._now_ms + backoff_ms
        if due_ms < message.expires_ms:
            self._schedule.postpone(message, due_ms)
        else:
            self._expire(message)

    def _expire(self, message: ApnsMessage) -> None:
        """Give up, because the push expires before a retry. Only an unknown outcome is recorded."""
        if message.history.unknown:
            self._record(message, _FAILED, str(AcceptanceUnknown(message.history.unknown)))
        else:
            self._schedule.release(message.progress)

    def _remove_token(self, message: ApnsMessage, reason: str, registered_before_ms: int) -> None:
        """Remove the token before the outcome is recorded; after a crash in between, Apple refuses the token again."""
        done = partial(self._record, message, _FAILED, reason)
        token = message.push.token
        self._shared.invalid_tokens.remove(
            TokenRemoval(self._appkey, message.partition, token, reason, registered_before_ms, done)
        )

    def _suspect_token(self, message: ApnsMessage, reason: str) -> None:
        if self._shared.bad_tokens.is_watched_as_bad(self._appkey):
            self.alarm_bad_tokens()
        refused_ms = self._shared.bad_tokens.first_refused_ms(
            self._appkey, message.partition, message.number, self._now_ms
        )
        if refused_ms is None:
            self._record(message, _FAILED, reason)
        else:
            self._remove_token(message, reason, refused_ms)

    def _record(self, message: ApnsMessage, kind: int, reason: str = "", badge: int | None = None) -> None:
        self._shared.recorder.record_final(
            message.partition, self._appkey, message.msgid, message.number, kind, self._now_ms, reason, badge
        )
        self._schedule.release(message.progress)

    # --- the app

    @property
    def _is_stopped(self) -> bool:
        """Whether nothing may be sent now: Apple does not accept the key, or the app is paused."""
        return self._health.is_stopped or self._shared.apps.is_paused(self._appkey)

    @property
    def _uses_both(self) -> bool:
        credentials = self._credentials
        return credentials is not None and credentials.environment is Environment.BOTH

    @property
    def _credentials(self) -> ApnsCredentials | None:
        app = self._shared.apps.get(self._appkey)
        return self._shared.credentials_of(app) if app else None

    @property
    def _now_ms(self) -> int:
        return self._shared.clock.now_ms()


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
