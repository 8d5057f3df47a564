"""Starts pushes: writes their audiences to the log and sends them, app by app in turn."""

import asyncio
import contextlib
import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from protos.delivery.v1.delivery_pb2 import PushFact
from protos.push.v1.push_pb2 import SendPush
from protos.registry.v1.apps_pb2 import Channel
from services.delivery import decide
from services.delivery.channels import DeliveryChannel
from services.delivery.event_writer import EventWriter, new_facts
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.resolving import AppResolver
from services.delivery.state.audience_parts import DeviceAddress
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.pushes import UnstartedPush
from services.delivery.waiting_pushes import (
    MAX_HELD_UP_BYTES,
    PARTITION_COST,
    ROUND,
    TURN,
    AppQueue,
    StartingPart,
    WaitingBytes,
    WaitingPush,
)
from services.domain.bitmap_resolver import AudienceBitmapResolver
from services.domain.recorded_reasons import AudienceTooLarge, AudienceUnresolved, FixedReason, TooMuchHeldUp
from services.domain.topics import PUSHES
from services.log.port import MAX_RECORD_BYTES
from services.net.fairness import FairQueue, KeyActivity
from services.process import push_traces, stages
from services.process.clock import Clock
from services.process.crashpoint import Point, reached
from services.process.logs import logger
from services.process.metrics import ACCEPTED_TO_SENT, PENDING, PUSHES_FAILED, PUSHES_HELD_UP, PUSHES_STARTED

_META_BYTES = 1000
_REST = 3
"""Rest after a turn of a long list beside other apps, as a multiple of the time that its messages take in all roles."""


class _App(NamedTuple):
    queue: AppQueue
    resolver: AppResolver


class PushStarter:
    """Service that works in rounds: it starts the pushes whose turn it is, then ends failed and cancelled pushes.

    Pushes of different apps do not wait for each other: an audience that is not resolved holds up its own app's pushes
    at most (see AppQueue), and an app with many waiting pushes lets another's pass after one round. While other apps
    have pushes, a long list of devices is sent in parts with a rest after each; a push of another app ends the rest.
    The reason: the frames, acknowledgements and outcomes of the list are handled one by one and delay those of others.
    Facts about starts and cancels are written here alone, so that no start follows the end of its push.
    """

    name = "delivery starts"

    def __init__(
        self,
        state: DeliveryState,
        events: EventWriter,
        audiences: AudienceBitmapResolver,
        channels: Mapping["Channel.ValueType", DeliveryChannel],
        recorder: OutcomeRecorder,
        waiting_bytes: WaitingBytes,
        clock: Clock,
        is_erased: Callable[[SendPush], bool] = lambda send: False,
    ) -> None:
        """`is_erased`: whether the push has no contents any more, because it lists an erased device."""
        self._state = state
        self._events = events
        self._audiences = audiences
        self._channels = channels
        self._recorder = recorder
        self._waiting_bytes = waiting_bytes
        self._clock = clock
        self._is_erased = is_erased
        self.has_resumed = asyncio.Event()
        """Set once the pushes that an earlier process left have started, as far as their audiences are known."""
        self._apps: dict[str, _App] = {}
        self._turns: FairQueue[str, None] = FairQueue()
        self._waiting: dict[int, WaitingPush] = {}
        self._held_up: set[int] = set()
        self._expiries: list[tuple[int, int]] = []
        self._failed: list[tuple[WaitingPush, str]] = []
        self._has_work = asyncio.Event()
        self._activity = KeyActivity(clock.now_ms)
        self._resting = ""
        """The app whose long list rests now, or after this round."""

        self._rest_s = 0.0
        self._other_has_work = asyncio.Event()
        self._is_in_round = False
        self._round_ended = asyncio.Event()

    @property
    def is_idle(self) -> bool:
        """Whether all pushes have started except those that are held up."""
        return not self._is_in_round and not self._has_work.is_set() and self._held_up >= self._waiting.keys()

    def add(self, push: UnstartedPush) -> None:
        """Start the push when it is its turn. Pushes are added in the order of the log; a repeated one is ignored."""
        msgid = push.send.msgid
        if msgid in self._waiting:
            return
        waiting = self._waiting[msgid] = WaitingPush.of(push)
        self._activity.seen(waiting.appkey)
        self._waiting_bytes.add(waiting.appkey, waiting.size)
        app = self._app(waiting.appkey)
        if not waiting.is_resolved:
            app.resolver.add(waiting)
        if waiting.is_over:
            return
        app.queue.add(waiting)
        if self._is_erased(push.send):
            self.failed(waiting, FixedReason.ERASED)
            return
        self._take_turn(waiting.appkey, app)

    def end_erased(self) -> None:
        """Fail the pushes that have no contents any more."""
        for waiting in [each for each in self._waiting.values() if self._is_erased(each.push.send)]:
            self.failed(waiting, FixedReason.ERASED)

    async def until_started(self, device: DeviceAddress) -> None:
        """Return once no push that names the device by an alias waits for its start."""
        while self._state.is_requested_by_alias(device):
            await self._round_ended.wait()

    def end_cancelled(self) -> None:
        """Write the ends of the pushes that have a pending cancel."""
        self._has_work.set()

    def end_expired(self) -> None:
        """Fail the pushes that are held up and whose time to live is over."""
        while self._expiries and self._expiries[0][0] <= self._clock.now_ms():
            _, msgid = heapq.heappop(self._expiries)
            if msgid in self._held_up:
                waiting = self._waiting[msgid]
                self.failed(waiting, str(AudienceUnresolved(waiting.last_error)))

    async def run(self, ready: asyncio.Event) -> None:
        for push in sorted(self._state.requested.values(), key=lambda push: push.offset):
            self.add(push)
        self._has_work.set()
        try:
            while True:
                await self._has_work.wait()
                self._has_work.clear()
                self._is_in_round = True
                while await self._round():
                    await self._rest()
                self._is_in_round = False
                self.has_resumed.set()
                ready.set()
        finally:
            for app in self._apps.values():
                app.resolver.stop()

    # --- results of resolving

    def resolved(self, waiting: WaitingPush) -> None:
        """Start the push, or the part of it that is resolved, when it is its turn."""
        if waiting.is_over:
            return
        app = self._app(waiting.appkey)
        app.queue.note_resolved(waiting)
        self._take_turn(waiting.appkey, app)

    def held_up(self, waiting: WaitingPush) -> None:
        """Let the app's later pushes pass this one, and a cancel end it at once; fail it if too much is held up."""
        if waiting.is_over:
            return
        app = self._app(waiting.appkey)
        if (held_up := app.queue.held_up_bytes) and held_up + waiting.size > MAX_HELD_UP_BYTES:
            self.failed(waiting, str(TooMuchHeldUp(held_up)))
            return
        app.queue.hold_up(waiting)
        self._held_up.add(waiting.msgid)
        heapq.heappush(self._expiries, (waiting.push.expires_ms, waiting.msgid))
        if waiting.msgid in self._state.pending_cancels:
            self._has_work.set()
        self._take_turn(waiting.appkey, app)

    def failed(self, waiting: WaitingPush, reason: str) -> None:
        """End the push in the partitions where it has not started."""
        if waiting.is_over:
            return
        logger.error("a push failed", msgid=waiting.msgid, app=waiting.appkey, reason=reason)
        push_traces.started(waiting.msgid, reason)
        self._failed.append((waiting, reason))
        self._forget(waiting)
        self._has_work.set()

    # --- rounds

    async def _round(self) -> bool:
        """Return whether something is left for another round."""
        await self._recorder.wait_capacity()
        parts = self._take_parts()
        failed, self._failed = self._failed, []
        await self._start(parts, failed)
        cancels = decide.cancel(self._state, self._held_up)
        await self._cancel(cancels)
        PENDING.set(len(self._state.started))
        PUSHES_HELD_UP.set(len(self._held_up))
        self._round_ended.set()
        self._round_ended = asyncio.Event()
        return bool(self._turns or self._failed or cancels)

    async def _rest(self) -> None:
        """Let other work pass between two rounds."""
        if not self._resting:
            await asyncio.sleep(0)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._rest_s):
                await self._other_has_work.wait()

    def _take_parts(self) -> list[StartingPart]:
        self._resting = ""
        parts: list[StartingPart] = []
        spent = 0.0
        while spent < ROUND and (turn := self._turns.take()) is not None:
            appkey = turn[0]
            if (app := self._apps.get(appkey)) is None:
                continue
            taken, cost = app.queue.take(TURN, self._cost, self._starts_whole)
            self._turns.charge(appkey, cost)
            self._take_turn(appkey, app)
            parts += taken
            spent += cost
            if any(part.waiting.is_long_list for part in taken) and not self._activity.is_alone(appkey):
                self._resting, self._rest_s = appkey, _REST * cost / 1e6
                self._other_has_work.clear()
                break
        return parts

    def _cost(self, waiting: WaitingPush, partition: int) -> float:
        channel = self._channels[waiting.push.channel]
        listed = waiting.listed[partition] if waiting.push.is_listed else None
        return PARTITION_COST + channel.starting_cost(waiting.appkey, partition, listed)

    def _starts_whole(self, waiting: WaitingPush) -> bool:
        return self._channels[waiting.push.channel].capabilities.starts_whole

    async def _start(self, parts: Sequence[StartingPart], failed: Sequence[tuple[WaitingPush, str]]) -> None:
        """Start these pushes and send them; end those that failed."""
        starts = [fact for part in parts for fact in self._starting_facts(part)]
        ends = [fact for waiting, reason in failed for fact in decide.fail(waiting.push, waiting.unstarted, reason)]
        if not starts and not ends:
            return
        reached(Point.PUSH_DECIDED)
        if ends or not all(self._may_send_first(part.waiting) for part in parts):
            await self._events.write(PUSHES, new_facts([*starts, *ends]))
            reached(Point.PUSH_STARTED)
        else:
            self._events.apply_starts(new_facts(starts))
            self._recorder.flush_soon()
        for part in parts:
            stages.note("started", part.waiting.msgid)
            self._send(part)
            if not part.waiting.unstarted:
                push_traces.started(part.waiting.msgid)
                accepted_ms = part.waiting.push.accepted_ms
                ACCEPTED_TO_SENT.observe(max(0, self._clock.now_ms() - accepted_ms) / 1000)
                self._forget(part.waiting)
        reached(Point.PUSH_SENT)
        PUSHES_STARTED.inc(len(starts))
        PUSHES_FAILED.inc(len(failed))

    def _starting_facts(self, part: StartingPart) -> list[PushFact]:
        """Return the facts that start the push; none, and fail it, if they cannot be made or written."""
        try:
            facts = decide.start(part.waiting.push, part.audiences, part.waiting.attributes_until)
            size = max(fact.ByteSize() for fact in facts) + _META_BYTES
        except Exception as error:
            logger.error("a push cannot be started", msgid=part.waiting.msgid, exc_info=error)
            reason = str(FixedReason.INTERNAL_ERROR)
        else:
            if size <= MAX_RECORD_BYTES:
                return facts
            reason = str(AudienceTooLarge(size))
        part.waiting.unstarted.update(part.audiences)
        self.failed(part.waiting, reason)
        return []

    def _send(self, part: StartingPart) -> None:
        """Send a push that has just started. An error stops no other push: the devices get it when they reconnect."""
        push = self._state.started.get(part.waiting.msgid)
        if push is None or not self._state.may_send(push, self._clock.now_ms()):
            return
        active = [partition for partition in part.audiences if partition in push.active_parts]
        try:
            self._channels[push.channel].start(push, active)
        except Exception as error:
            logger.error("a push could not be sent when it started", msgid=push.msgid, exc_info=error)

    async def _cancel(self, cancels: list[PushFact]) -> None:
        if not cancels:
            return
        reached(Point.CANCEL_DECIDED)
        await self._events.write(PUSHES, new_facts(cancels))
        reached(Point.CANCEL_DONE)
        for msgid in {fact.msgid for fact in cancels} & self._held_up:
            self._forget(self._waiting[msgid])

    def _may_send_first(self, waiting: WaitingPush) -> bool:
        """Whether the push may be sent before its start is in the log, because a restarted process starts it again.

        Its command must name the devices, they must drop repeated messages, and no push of the app may be held up.
        """
        push, app = waiting.push, self._apps.get(waiting.appkey)
        if not self._channels[push.channel].capabilities.drops_repeats:
            return False
        if push.send.qps or not push.is_listed or not self._events.may_apply_starts:
            return False
        return app is not None and not app.queue.held_up_bytes

    # --- apps

    def _app(self, appkey: str) -> _App:
        app = self._apps.get(appkey)
        if app is None:
            app = self._apps[appkey] = _App(AppQueue(), AppResolver(self._audiences, self._clock, self))
        return app

    def _take_turn(self, appkey: str, app: _App) -> None:
        if app.queue.is_ready:
            self._has_work.set()
            if appkey != self._resting:
                self._other_has_work.set()
            if not self._turns.waiting(appkey):
                self._turns.put(appkey, None)

    def _forget(self, waiting: WaitingPush) -> None:
        """Drop a push that has started everywhere or was ended; ignored for one that was dropped already."""
        if waiting.is_over:
            return
        waiting.is_over = True
        self._held_up.discard(waiting.msgid)
        del self._waiting[waiting.msgid]
        self._waiting_bytes.remove(waiting.appkey, waiting.size)
        if (app := self._apps.get(waiting.appkey)) is None:
            return
        app.resolver.discard(waiting)
        app.queue.discard(waiting)
        if not app.queue:
            app.resolver.stop()
            del self._apps[waiting.appkey]
