"""Sends pushes through a push service, one task for each app, and records the outcomes."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple, assert_never

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from services.delivery.channels import (
    AddressRemoval,
    Answer,
    Capabilities,
    ClaimAnswer,
    ClaimedMessage,
    Credentials,
    CredentialsError,
    DelayDevice,
    MessageClaims,
    PushService,
    Recipient,
    RecordFailed,
    RecordSent,
    RemoveAddress,
    Request,
    ResendOnce,
    RetryLater,
    Sender,
    Step,
)
from services.delivery.channels.addresses import AddressRemover, DeviceAddresses, TokenAddresses
from services.delivery.channels.health import Alarms, AppHealth, Stopped
from services.delivery.channels.progress import ClaimedDeviceMessage, MessageRequest, PushProgress
from services.delivery.channels.queue import Chunk, DelayQueue, DeviceDelays, InFlightWindow, PushSchedule
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.pushes import StartedPush
from services.domain.addresses import WITHOUT_ADDRESSES
from services.domain.apps import AppDirectory
from services.domain.command_writer import CommandWriter
from services.domain.recorded_reasons import AcceptanceUnknown, FixedReason, RefusedUntilExpiry
from services.process import background
from services.process.clock import Clock
from services.process.crashpoint import Point, reached
from services.replica.peers import Peers

# One app's pushes, with a bounded number in flight.

_SLICE = 500
"""Messages whose addresses are looked up at once."""

_AT_ONCE = 50
"""Messages that are made before other tasks run: about a millisecond, for a push to a connected device passes some 20
turns of the event loop.
"""

_SENT = OutcomeKind.OUTCOME_KIND_SENT
_FAILED = OutcomeKind.OUTCOME_KIND_FAILED
_EXPIRED = OutcomeKind.OUTCOME_KIND_EXPIRED


@dataclass(frozen=True, slots=True)
class _Shared(Generic[Credentials, Request, Answer]):
    """Collaborators that all `AppSender`s of a channel share."""

    service: PushService[Credentials, Request, Answer]
    recorder: OutcomeRecorder
    addresses: DeviceAddresses
    remover: AddressRemover
    apps: AppDirectory
    alarms: Alarms
    clock: Clock
    shards: int


class _Claim(NamedTuple):
    """A claimed message, and who is told its answer."""

    message: ClaimedMessage
    claims: MessageClaims


class _Server(Generic[Credentials, Request, Answer]):
    """One of the service's servers: how many of the app's messages are in flight to it, and the messages that wait for
    it.
    """

    def __init__(self) -> None:
        self.in_flight = 0
        self.waiting: deque[MessageRequest[Credentials, Request, Answer]] = deque()
        self.purge_at = 1_000


_CLAIM_RETRY_MS = 2_000
"""Wait for a claimed message that cannot be requested now, because its address cannot be looked up for example."""


class AppSender(Generic[Credentials, Request, Answer]):
    """Sends the app's pushes in turns, so that a small push does not wait for a large one; then claimed messages."""

    def __init__(self, appkey: str, shared: _Shared[Credentials, Request, Answer]) -> None:
        self._appkey = appkey
        self._shared = shared
        self._service = shared.service
        self._work_available = asyncio.Event()
        wake_up, limits = self._work_available.set, shared.service.limits
        self._schedule: PushSchedule[Credentials, Request, Answer] = PushSchedule(
            shared.clock, shared.shards, wake_up, lambda: self._credentials is not None, limits.delayed_messages
        )
        self._device_delays = DeviceDelays(limits.delayed_devices)
        self._window = InFlightWindow(limits.window, wake_up)
        self._health = AppHealth(shared.clock, shared.service.apps_stopped)
        self._claims: deque[_Claim] = deque()
        self._later_claims: DelayQueue[_Claim] = DelayQueue(shared.clock, wake_up)
        self._servers: dict[str, _Server[Credentials, Request, Answer]] = {}
        """The servers to which messages are in flight, for a service that has several servers."""

        self._waiting = 0
        self._closed = False
        self.stops = 0
        """How often the service has stopped accepting the app's credentials."""

    @property
    def is_idle(self) -> bool:
        return self._schedule.is_idle and not self._claims and not self._later_claims

    @property
    def claim_window(self) -> int:
        """How many messages may be claimed and not answered: 0 while nothing may be sent, and then 1 as a probe.

        Messages that wait for a retry or for a server do not count, up to a bound.
        """
        if self._health.is_stopped:
            return 0
        if self._health.is_probing:
            return 1
        limits = self._service.limits
        return limits.window + min(self._waiting + self._schedule.delayed_claims, limits.waiting_claims)

    @property
    def stopped(self) -> Stopped | None:
        """Since when and why the pushes wait, where the service does not accept the app's credentials."""
        return self._health.stopped

    async def drained(self) -> None:
        """Return once no message waits for an answer."""
        await self._window.empty.wait()

    def wake_up(self) -> None:
        """Look again for messages to send, because the app may have been resumed."""
        self._work_available.set()

    def start(self, push: StartedPush, partitions: Iterable[int]) -> None:
        self._schedule.start(PushProgress(push, partitions, self._service.encoder(push)))

    def hand_over(self, messages: Iterable[ClaimedMessage], claims: MessageClaims) -> None:
        """Queue messages that the channel has claimed; each is answered to `claims`."""
        if len(self._claims) > 2 * self._service.limits.window:  # many were recalled, and others claimed instead
            self._claims = deque(claim for claim in self._claims if self._is_claim_pending(claim))
        self._claims.extend(_Claim(message, claims) for message in messages)
        self._work_available.set()

    async def run(self) -> None:
        while True:
            await self._work_available.wait()
            self._work_available.clear()
            while await self._send_some():
                await asyncio.sleep(0)

    def close(self) -> None:
        """Ignore answers from now on: their pushes are sent again after the next start."""
        self._closed = True
        self._health.close()
        self._schedule.close()
        self._later_claims.close()

    # --- choosing what to send

    async def _send_some(self) -> bool:
        """Send some messages or chunks; False if there is no capacity or nothing to send."""
        self._schedule.collect_due()
        self._claims.extend(self._later_claims.take_due())
        if self._health.is_stopped:
            self._refuse_claims()
        free = 0 if self._is_stopped else self._window.free(self._health.is_probing)
        if free <= 0:
            return False
        ready = self._schedule.take_ready(min(free, _AT_ONCE))
        for message in ready:
            self._submit(message)
        if ready:
            return True
        chunks = self._schedule.take_chunks(min(free, _SLICE))
        if chunks:
            await self._shared.recorder.wait_capacity()
            await self._send_chunks(chunks)
        claims = [self._claims.popleft() for _ in range(min(len(self._claims), free, _SLICE))]
        if claims:
            await self._send_claims(claims)
        return bool(chunks or claims)

    # --- sending

    async def _send_chunks(self, chunks: Sequence[Chunk[Credentials, Request]]) -> None:
        """Send to the chunks' devices; devices whose address cannot be looked up now wait for the next pass."""
        credentials = self._credentials
        if credentials is None:
            self._alarm(self._service.no_credentials)
        recipients = await self._look_up(chunks) if credentials is not None else {}
        for chunk in chunks:
            in_partition = recipients.get(chunk.partition)
            if in_partition is None or credentials is None:
                chunk.progress.needs_pass = True
            else:
                for message in self._messages(chunk, in_partition, credentials):
                    self._start(message)
            self._schedule.release(chunk.progress)
            await asyncio.sleep(0)

    async def _look_up(self, chunks: Sequence[Chunk[Credentials, Request]]) -> dict[int, dict[int, Recipient]]:
        """Devices by partition and number, without the partitions whose registry is unavailable."""
        return await self._fetch((chunk.partition, chunk.numbers) for chunk in chunks)

    async def _fetch(self, devices: Iterable[tuple[int, Iterable[int]]]) -> dict[int, dict[int, Recipient]]:
        partitions: dict[int, list[int]] = {}
        for partition, numbers in devices:
            partitions.setdefault(partition, []).extend(numbers)
        return await self._shared.addresses.fetch(self._appkey, partitions)

    def _messages(
        self, chunk: Chunk[Credentials, Request], recipients: Mapping[int, Recipient], credentials: Credentials
    ) -> Iterator[MessageRequest[Credentials, Request, Answer]]:
        """Yield each message of the chunk without a final outcome; its address is "" if the device was removed."""
        progress, partition, numbers = chunk
        part = progress.push.active_parts.get(partition)
        if part is None:
            return
        for number in numbers:
            for msgid in part.pending_msgids(number):
                if self._shared.recorder.has_unwritten_final(partition, msgid, number):
                    continue
                recipient = recipients[number]
                request, badge = progress.encoder.encode(msgid, recipient, credentials)
                yield MessageRequest(self, progress, recipient, msgid, request, badge)

    def _start(self, message: MessageRequest[Credentials, Request, Answer]) -> None:
        message.progress.in_flight += 1
        if message.recipient.address:
            self._submit(message)
        else:
            self._record(message, _FAILED, FixedReason.REMOVED)

    def _submit(self, message: MessageRequest[Credentials, Request, Answer]) -> None:
        """Hand the message to the sender, unless its device is delayed or there are no usable credentials."""
        until_ms = self._device_delays.until_ms(message.recipient.address, self._now_ms)
        if until_ms is not None:
            self._schedule.postpone(message, until_ms)
            self._let_in(message.recipient)
            return
        sender = self._sender(message)
        if sender is None:
            self._take_step(message, RetryLater(), "")
            self._let_in(message.recipient)
            return
        if not self._enter_server(message):
            return
        self._window.enter()
        reached(Point.SERVICE_SENDING)
        sender.submit(message)

    def _enter_server(self, message: MessageRequest[Credentials, Request, Answer]) -> bool:
        """Count the message for its server; False: it waits, because the server holds its share of the window."""
        name = self._service.server(message.recipient)
        if not name:
            return True
        server = self._servers.setdefault(name, _Server())
        if server.in_flight < self._service.limits.server_window:
            server.in_flight += 1
            return True
        server.waiting.append(message)
        self._waiting += 1
        if isinstance(message, ClaimedDeviceMessage):
            message.claims.answered(message.claimed, ClaimAnswer.POSTPONED)
        if len(server.waiting) > server.purge_at:
            self._purge(server)
        return False

    def _purge(self, server: _Server[Credentials, Request, Answer]) -> None:
        """Give up the messages that wait for the server and may not be requested any more."""
        waiting, server.waiting = server.waiting, deque()
        for message in waiting:
            if message.is_pending(self._now_ms):
                server.waiting.append(message)
            else:
                self._waiting -= 1
                self._expire(message)
        server.purge_at = max(1_000, 2 * len(server.waiting))

    def _leave_server(self, message: MessageRequest[Credentials, Request, Answer]) -> None:
        """Note that the server does not hold the message any more, and let the next one in."""
        if server := self._servers.get(self._service.server(message.recipient)):
            server.in_flight -= 1
        self._let_in(message.recipient)

    def _let_in(self, recipient: Recipient, count: int = 1) -> None:
        """Make ready the next messages that wait for the recipient's server; they wait again if the server is still
        full.
        """
        server = self._servers.get(name := self._service.server(recipient))
        if server is None:
            return
        for _ in range(min(count, len(server.waiting))):
            self._waiting -= 1
            self._schedule.resend(server.waiting.popleft())
            self._work_available.set()
        if not (server.in_flight or server.waiting):
            del self._servers[name]

    def _sender(self, message: MessageRequest[Credentials, Request, Answer]) -> Sender[Request, Answer] | None:
        credentials = self._credentials
        try:
            return self._service.sender(credentials, message.history) if credentials is not None else None
        except CredentialsError as error:
            self._alarm(str(error))
            return None

    # --- claimed messages

    async def _send_claims(self, claims: Iterable[_Claim]) -> None:
        """Request claimed messages.

        One that cannot be requested now waits, or is returned if it was certainly never requested.
        """
        credentials = self._credentials
        if credentials is None:
            self._alarm(self._service.no_credentials)
            for claim in claims:
                self._refuse(claim, FixedReason.NO_CREDENTIALS)
            return
        pending = [claim for claim in claims if self._is_claim_pending(claim)]
        found = await self._fetch((claim.message.partition, [claim.message.number]) for claim in pending)
        of_pushes: dict[int, PushProgress[Credentials, Request]] = {}
        for at, claim in enumerate(pending, 1):
            push, partition, number, msgid, *_ = claim.message
            if at % _AT_ONCE == 0:
                await asyncio.sleep(0)
            if (in_partition := found.get(partition)) is None:
                self._later_claims.put(self._now_ms + _CLAIM_RETRY_MS, claim)
            elif not in_partition[number].address:
                claim.claims.answered(claim.message, ClaimAnswer.REFUSED, FixedReason.NO_ADDRESS)
            else:
                if (progress := of_pushes.get(push.msgid)) is None:
                    progress = of_pushes[push.msgid] = PushProgress(push, (), self._service.encoder(push))
                self._schedule.keep(progress)
                request = progress.encoder.encode(msgid, in_partition[number], credentials).request
                progress.in_flight += 1
                self._submit(ClaimedDeviceMessage(self, progress, in_partition[number], request, *claim))

    def _is_claim_pending(self, claim: _Claim) -> bool:
        """Whether the message may be requested; if not, it is given up."""
        if claim.claims.may_request(claim.message):
            return True
        claim.claims.answered(claim.message, ClaimAnswer.GIVEN_UP)
        return False

    def _refuse_claims(self) -> None:
        """While the app is stopped here, let others show what the service certainly does not have."""
        reason = self._health.stopped.reason if self._health.stopped else ""
        for server in list(self._servers.values()):
            if server.waiting:
                self._let_in(server.waiting[0].recipient, len(server.waiting))
        waiting, self._claims = self._claims, deque()
        for claim in waiting:
            self._refuse(claim, reason)
        for message in self._schedule.take_ready_claims():
            if not message.is_pending(self._now_ms):
                self._expire(message)
            elif message.claims.is_uncertain(message.claimed):
                self._schedule.postpone(message, self._now_ms + _CLAIM_RETRY_MS)
            else:
                self._record(message, _FAILED, reason)

    def _refuse(self, claim: _Claim, reason: str) -> None:
        """Let others show a message that cannot be requested now, unless the service may have it: that one waits."""
        if not self._is_claim_pending(claim):
            return
        if claim.claims.is_uncertain(claim.message):
            self._later_claims.put(self._now_ms + _CLAIM_RETRY_MS, claim)
        else:
            claim.claims.answered(claim.message, ClaimAnswer.REFUSED, reason)

    # --- callbacks of messages

    def is_wanted(self, message: MessageRequest[Credentials, Request, Answer]) -> bool:
        return not self._is_stopped and message.begin_request(self._now_ms)

    def skipped(self, message: MessageRequest[Credentials, Request, Answer]) -> None:
        self._window.leave()
        self._leave_server(message)
        if message.is_pending(self._now_ms):
            self._schedule.resend(message)
        elif message.expires_ms <= self._now_ms or isinstance(message, ClaimedDeviceMessage):
            self._expire(message)
        else:
            self._schedule.release(message.progress)

    def answered(self, message: MessageRequest[Credentials, Request, Answer], answer: Answer) -> None:
        if self._closed:
            return
        reached(Point.SERVICE_ANSWERED)
        self._window.leave()
        self._leave_server(message)
        reaction = self._service.react(answer, message.history, message.recipient, self._credentials)
        if reaction.alarm:
            self._alarm(reaction.alarm, answer.reason)
        probe_ms = self._health.apply(reaction.circuit, answer.reason)
        if probe_ms is not None:
            self.stops += 1
            self._schedule.wake_at(probe_ms)
        self._take_step(message, reaction.step, answer.reason)

    # --- next steps

    def _take_step(self, message: MessageRequest[Credentials, Request, Answer], step: Step, reason: str) -> None:
        before, message.history = message.history, message.history.apply(step, reason)
        if isinstance(message, ClaimedDeviceMessage) and isinstance(step, ResendOnce | DelayDevice | RetryLater):
            is_unknown = isinstance(step, RetryLater) and step.is_unknown
            answer = ClaimAnswer.UNANSWERED if is_unknown else ClaimAnswer.POSTPONED
            message.claims.answered(message.claimed, answer, reason)
        match step:
            case RecordSent():
                self._record(message, _SENT, badge=message.badge)
            case RecordFailed():
                self._record(message, _FAILED, reason)
            case RemoveAddress(registered_before_ms):
                self._remove_address(message, reason, registered_before_ms)
            case ResendOnce():
                self._schedule.resend(message)
            case DelayDevice(at_least_ms):
                wait_ms = max(before.next_backoff_ms, at_least_ms)
                self._device_delays.delay(message.recipient.address, self._now_ms + wait_ms, self._now_ms)
                self._retry(message, wait_ms)
            case RetryLater(at_least_ms):
                self._retry(message, max(before.next_backoff_ms, at_least_ms))
            case _:
                assert_never(step)

    def _retry(self, message: MessageRequest[Credentials, Request, Answer], wait_ms: int) -> None:
        due_ms = self._now_ms + wait_ms
        is_over = isinstance(message, ClaimedDeviceMessage) and not message.is_pending(self._now_ms)
        if due_ms < message.expires_ms and not is_over:
            self._schedule.postpone(message, due_ms)
            for each in self._schedule.take_unneeded_claims():
                self._expire(each)
        else:
            self._expire(message)

    def _expire(self, message: MessageRequest[Credentials, Request, Answer]) -> None:
        """Give up, because the push expires before a retry. What the service never answered gets no outcome here."""
        if isinstance(message, ClaimedDeviceMessage):
            reason = message.history.unknown or message.history.refused
            message.claims.answered(message.claimed, ClaimAnswer.GIVEN_UP, reason)
            self._schedule.release(message.progress)
        elif message.history.unknown:
            self._record(message, _FAILED, str(AcceptanceUnknown(message.history.unknown)))
        elif message.history.refused and (message.expires_ms <= self._now_ms or message.is_pending(self._now_ms)):
            self._record(message, _EXPIRED, str(RefusedUntilExpiry(message.history.refused)))
        else:
            self._schedule.release(message.progress)

    def _remove_address(
        self, message: MessageRequest[Credentials, Request, Answer], reason: str, registered_before_ms: int
    ) -> None:
        """Remove the address before the outcome is recorded; after a crash in between, the service refuses it again."""
        done = partial(self._record, message, _FAILED, reason)
        self._shared.remover.remove(AddressRemoval(message.recipient, reason, registered_before_ms, done))

    def _record(
        self,
        message: MessageRequest[Credentials, Request, Answer],
        kind: int,
        reason: str = "",
        badge: int | None = None,
    ) -> None:
        recipient = message.recipient
        if isinstance(message, ClaimedDeviceMessage):
            answer = ClaimAnswer.ACCEPTED if kind == _SENT else ClaimAnswer.REFUSED
            message.claims.answered(message.claimed, answer, reason)
        else:
            service = None if reason == FixedReason.REMOVED else self._service.channel
            self._shared.recorder.record_final(
                *(recipient.partition, self._appkey, message.msgid, recipient.number, kind, self._now_ms),
                *(reason, badge, service),
                carries_msgid=kind == _SENT and message.progress.push.carries_msgid,
            )
        self._schedule.release(message.progress)

    # --- the app

    def _alarm(self, text: str, reason: str = "") -> None:
        self._shared.alarms.log(self._appkey, text, reason)

    @property
    def _is_stopped(self) -> bool:
        """Whether nothing may be sent now: the service does not accept the credentials, or the app is paused."""
        return self._health.is_stopped or self._shared.apps.is_paused(self._appkey)

    @property
    def _credentials(self) -> Credentials | None:
        app = self._shared.apps.get(self._appkey)
        return self._service.credentials_of(app) if app else None

    @property
    def _now_ms(self) -> int:
        return self._shared.clock.now_ms()


_DRAIN_S = 2.0
"""At the stop: time for answers to requests in flight, so that these are not sent again."""


class ServiceChannel(Generic[Credentials, Request, Answer]):
    """The DeliveryChannel of a push service; it retries what fails for a temporary reason until the push expires."""

    capabilities = Capabilities(drops_repeats=False, starts_whole=True)

    def __init__(
        self,
        service: PushService[Credentials, Request, Answer],
        writer: CommandWriter,
        state: DeliveryState,
        recorder: OutcomeRecorder,
        peers: Peers,
        apps: AppDirectory,
        alarms: Alarms,
        clock: Clock,
        shards: int,
    ) -> None:
        self.name = f"delivery {service.title.lower()}"
        self._service = service
        self._state = state
        self._apps_directory = apps
        self._remover = AddressRemover(writer, service.removal)
        has_tokens = service.channel in WITHOUT_ADDRESSES
        addresses = TokenAddresses(peers) if has_tokens else DeviceAddresses(peers, service.channel)
        self._shared = _Shared(service, recorder, addresses, self._remover, apps, alarms, clock, shards)
        self._apps: dict[str, AppSender[Credentials, Request, Answer]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_idle(self) -> bool:
        """Whether no push is in progress or waits for a retry."""
        return all(app.is_idle for app in self._apps.values())

    def start(self, push: StartedPush, partitions: Iterable[int]) -> None:
        self._app(push.send.appkey).start(push, partitions)

    def starting_cost(self, appkey: str, partition: int, listed: int | None) -> float:
        """None: the audience is sent to later, in turns."""
        return 0.0

    # --- messages that the channel claims

    @property
    def channel(self) -> int:
        return self._service.channel

    def is_set_up(self, appkey: str) -> bool:
        """Whether the app has credentials."""
        app = self._apps_directory.get(appkey)
        return app is not None and self._service.credentials_of(app) is not None

    def can_carry(self, push: StartedPush) -> bool:
        """Whether the service can show the push's message, also shortened."""
        return self._service.can_carry(push)

    def claim_window(self, appkey: str) -> int:
        """Return how many of the app's messages may be claimed and not answered; 0 while the app is stopped here."""
        app = self._apps.get(appkey)
        return app.claim_window if app else self._service.limits.window

    def stops(self, appkey: str) -> int:
        """Return how often the service has stopped accepting the app's credentials."""
        app = self._apps.get(appkey)
        return app.stops if app else 0

    def hand_over(self, messages: Iterable[ClaimedMessage], claims: MessageClaims) -> None:
        """Queue messages that the channel has claimed; each is answered to `claims`."""
        of_apps: dict[str, list[ClaimedMessage]] = {}
        for message in messages:
            of_apps.setdefault(message.push.send.appkey, []).append(message)
        for appkey, of_app in of_apps.items():
            self._app(appkey).hand_over(of_app, claims)

    # --- running

    async def run(self, ready: asyncio.Event) -> None:
        """Resume the pushes in the state, then run until cancelled. `start` may be called once it is ready."""
        self._service.open(self._apps.__contains__)
        for push in self._state.started.of_channel(self._service.channel):
            self.start(push, push.active_parts)
        ready.set()
        try:
            while True:
                await self._apps_directory.pauses_changed.wait()
                for app in self._apps.values():
                    app.wake_up()
        finally:
            await self._stop()

    def stopped(self, appkey: str) -> Stopped | None:
        """Return since when and why the app's pushes wait, where the service does not accept its credentials."""
        app = self._apps.get(appkey)
        return app.stopped if app else None

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                for app in self._apps.values():
                    await app.drained()
        for app in self._apps.values():
            app.close()
        await self._remover.close()
        await self._service.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _app(self, appkey: str) -> AppSender[Credentials, Request, Answer]:
        app = self._apps.get(appkey)
        if app is None:
            app = self._apps[appkey] = AppSender(appkey, self._shared)
            task = background.start_endless(f"sender of {self._service.title} app {appkey}", app.run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return app
