"""One iOS app's pushes on their way to Apple: a bounded number at once, and every answer has its consequence."""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from services.delivery.apns.circuit_breaker import Circuit
from services.delivery.apns.provider_tokens import KeyFaultError
from services.delivery.apns.push import ApnsResult
from services.delivery.apns.reasons import Action, Verdict, verdict
from services.delivery.apns.senders import CredentialsOf, Senders
from services.delivery.ios.badge_counter import BadgeCounter
from services.delivery.ios.dead_tokens import DeadToken, DeadTokens
from services.delivery.ios.delay_queue import DelayQueue
from services.delivery.ios.device_tokens import DeviceTokens, KnownDevice
from services.delivery.ios.push_progress import LAST_RETRY_MS, Target, Work, retry_ms
from services.delivery.ios.round_robin import Chunk, Turns
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.state.badges import Badges
from services.delivery.state.pushes import StartedPush
from services.domain.apns.credentials import ApnsCredentials, Environment
from services.domain.apps import AppDirectory
from services.runtime.process.clock import Clock
from services.runtime.process.crashpoint import Point, reached
from services.runtime.process.logs import logger
from services.runtime.process.metrics import APNS_STOPPED

WINDOW = 2000
"""Sendings of an app that wait for Apple's answer or for their place on a connection."""

MOST_LATER = 10_000
"""Sendings of an app that wait to be repeated; who finds no place is walked to again."""

_SLICE = 500
_FIRST_REST_MS = 5_000
_ALARM_MS = 60_000
_KEY_MS = 5_000
"""How long after an app got its first key its pushes go on, at most."""

_SENT = OutcomeKind.OUTCOME_KIND_SENT
_FAILED = OutcomeKind.OUTCOME_KIND_FAILED


@dataclass(frozen=True, slots=True)
class Tools:
    """What all apps share."""

    recorder: OutcomeRecorder
    credentials_of: CredentialsOf
    dead: DeadTokens
    tokens: DeviceTokens
    badges: Badges
    apps: AppDirectory
    clock: Clock
    shards: int
    senders: Senders


class IosApp:
    """Pushes take turns, so that a small one does not wait for a large one."""

    def __init__(self, appkey: str, tools: Tools) -> None:
        self._appkey = appkey
        self._tools = tools
        self._badges = BadgeCounter(appkey, tools.badges)
        self._news = asyncio.Event()
        self._live: set[Work] = set()
        self._turns = Turns(tools.clock, tools.shards, self._news.set, self._end_if_done)
        self._ready: deque[Target] = deque()
        self._later: DelayQueue[Target | Work | None] = DelayQueue(tools.clock, self._news.set)
        self._resting: dict[str, int] = {}
        self._alarms: dict[str, int] = {}
        self._circuit = Circuit(_FIRST_REST_MS, LAST_RETRY_MS)
        self._in_flight = 0
        self.quiet = asyncio.Event()
        """Set while nothing waits for Apple's answer."""
        self.quiet.set()
        self._closed = False

    @property
    def is_idle(self) -> bool:
        return not self._live

    def start(self, push: StartedPush, partitions: Iterable[int]) -> None:
        work = Work(push, partitions)
        self._live.add(work)
        self._turns.enter(work)

    async def run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while await self._go_on():
                pass

    def close(self) -> None:
        """Answers that come now are not heard: what they are about is sent again after the next start."""
        self._closed = True
        self._later.close()
        self._turns.close()

    # --- who is next

    async def _go_on(self) -> bool:
        """Send some; False when there is no room or nothing to do."""
        self._take_due()
        free = self._free()
        if free <= 0:
            return False
        if self._ready:
            for _ in range(min(free, len(self._ready))):
                self._submit(self._ready.popleft())
            return True
        chunks = self._turns.take(min(free, _SLICE))
        if chunks:
            await self._tools.recorder.wait_capacity()
            await self._send(chunks)
        return bool(chunks)

    def _take_due(self) -> None:
        for item in self._later.due():
            if isinstance(item, Work):
                self._turns.enter(item)
            elif item is not None:
                self._ready.append(item)

    def _free(self) -> int:
        if self._circuit.rests(self._now_ms):
            return 0
        return (WINDOW if self._circuit.is_closed else 1) - self._in_flight

    # --- sending

    async def _send(self, chunks: Sequence[Chunk]) -> None:
        """Send to these devices; whoever cannot be sent to now is walked to again."""
        credentials = self._credentials
        if not credentials:
            self._alarm("the app has no APNs key; its pushes wait")
        partitions: dict[int, list[int]] = {}
        for _, partition, numbers in chunks:
            partitions.setdefault(partition, []).extend(numbers)
        devices = await self._tools.tokens.of(self._appkey, partitions) if credentials else {}
        for work, partition, numbers in chunks:
            known = devices.get(partition)
            if known is None or credentials is None:
                work.missed = True
            else:
                self._send_chunk(work, partition, numbers, known, credentials)
            self._let_go(work)

    def _send_chunk(
        self,
        work: Work,
        partition: int,
        numbers: Iterable[int],
        devices: dict[int, KnownDevice],
        credentials: ApnsCredentials,
    ) -> None:
        part = work.push.active_parts.get(partition)
        for number in numbers if part else ():
            assert part is not None
            for msgid in part.pending_msgids(number):
                if self._tools.recorder.has_unwritten_final(partition, msgid, number):
                    continue
                device = devices[number]
                badge = self._badge(work, partition, number, device.active_ms)
                push = work.to(device.token, credentials.topic, msgid, badge)
                target = Target(self, work, partition, number, msgid, push, badge)
                work.in_flight += 1
                if push.token:
                    self._submit(target)
                else:
                    self._settle(target, _FAILED, "removed")

    def _badge(self, work: Work, partition: int, number: int, active_ms: int) -> int | None:
        if work.counts_up:
            return self._badges.next(partition, number, active_ms, self._now_ms)
        return None if work.badge is None else self._badges.note(partition, number, work.badge, self._now_ms)

    def _submit(self, target: Target) -> None:
        """Give it to the sender, unless its device has to be left in peace."""
        rest_ms = self._resting.get(target.push.token, 0)
        if rest_ms > self._now_ms:
            self._put_off(target, rest_ms)
            return
        self._resting.pop(target.push.token, None)
        credentials = self._credentials
        try:
            sender = self._tools.senders.get(credentials, target.elsewhere) if credentials else None
        except KeyFaultError as error:
            self._alarm(str(error))
            sender = None
        if sender is None:
            self._repeat(target)
            return
        self._in_flight += 1
        self.quiet.clear()
        reached(Point.APNS_SENDING)
        sender.submit(target)

    # --- answers

    def wanted(self, target: Target) -> bool:
        return not self._circuit.rests(self._now_ms) and self._is_pending(target)

    def skipped(self, target: Target) -> None:
        self._came_back()
        if self._is_pending(target):
            self._ready.append(target)
        elif target.work.push.expires_ms <= self._now_ms:
            self._give_up(target)
        else:
            self._let_go(target.work)

    def _is_pending(self, target: Target) -> bool:
        part = target.work.push.active_parts.get(target.partition)
        return (
            part is not None
            and target.work.push.expires_ms > self._now_ms
            and target.msgid in part.pending_msgids(target.number)
        )

    def answered(self, target: Target, result: ApnsResult) -> None:
        if self._closed:
            return
        reached(Point.APNS_ANSWERED)
        self._came_back()
        follows = verdict(result)
        self._judge(follows, result)
        match follows.action:
            case Action.ACCEPT:
                self._settle(target, _SENT, badge=target.badge)
            case Action.FAIL:
                self._settle(target, _FAILED, result.reason)
            case Action.TRY_OTHER_ENVIRONMENT if not target.elsewhere and self._uses_both():
                target.elsewhere = True
                self._ready.append(target)
            case Action.REMOVE | Action.TRY_OTHER_ENVIRONMENT:
                self._remove(target, result)
            case Action.RENEW_TOKEN if not target.renewed:
                target.renewed = True
                self._ready.append(target)
            case Action.DELAY_DEVICE:
                self._rest(target.push.token, retry_ms(target.attempts + 1))
                self._repeat(target)
            case _:
                target.unknown = result.reason if result.unknown else target.unknown
                self._repeat(target)

    def _rest(self, token: str, rest_ms: int) -> None:
        if len(self._resting) >= MOST_LATER:
            self._resting = {token: until_ms for token, until_ms in self._resting.items() if until_ms > self._now_ms}
        if len(self._resting) < MOST_LATER:
            self._resting[token] = self._now_ms + rest_ms

    def _judge(self, follows: Verdict, result: ApnsResult) -> None:
        """What an answer says about the whole app."""
        if follows.alarm:
            self._alarm("Apple refuses pushes", result.reason)
        if follows.action is Action.STOP_APP:
            was_closed = self._circuit.is_closed
            if self._circuit.trip(self._now_ms):
                self._later.put(self._circuit.until_ms, None)
                APNS_STOPPED.inc(was_closed)
        elif result.status in (200, 400, 410) and not self._circuit.is_closed:
            self._circuit.close()
            APNS_STOPPED.dec()

    def _alarm(self, text: str, reason: str = "") -> None:
        """Once a minute for each kind of trouble."""
        if self._now_ms - self._alarms.get(text + reason, -_ALARM_MS) >= _ALARM_MS:
            self._alarms[text + reason] = self._now_ms
            logger.error(text, appkey=self._appkey, reason=reason)

    def _uses_both(self) -> bool:
        return self._credentials is not None and self._credentials.environment is Environment.BOTH

    def _remove(self, target: Target, result: ApnsResult) -> None:
        """Out of the registry first, then the outcome: a crash in between finds the token dead again."""
        done = partial(self._settle, target, _FAILED, result.reason)
        timestamp_ms = result.timestamp_ms or 0
        dead = DeadToken(self._appkey, target.partition, target.push.token, result.reason, timestamp_ms, done)
        self._tools.dead.add(dead)

    def _repeat(self, target: Target) -> None:
        """Again later, if the push lives until then; else an outcome that nobody knows is recorded as that."""
        target.attempts += 1
        moment_ms = self._now_ms + retry_ms(target.attempts)
        if moment_ms < target.work.push.expires_ms:
            self._put_off(target, moment_ms)
        else:
            self._give_up(target)

    def _give_up(self, target: Target) -> None:
        if target.unknown:
            self._settle(target, _FAILED, f"unknown: {target.unknown}")
        else:
            self._let_go(target.work)

    def _put_off(self, target: Target, moment_ms: int) -> None:
        if len(self._later) + len(self._ready) < MOST_LATER:
            self._later.put(moment_ms, target)
        else:
            target.work.missed = True
            self._let_go(target.work)

    def _settle(self, target: Target, kind: int, reason: str = "", badge: int | None = None) -> None:
        """Record what became of it."""
        self._tools.recorder.record_final(
            target.partition, self._appkey, target.msgid, target.number, kind, self._now_ms, reason, badge
        )
        self._let_go(target.work)

    # --- counting

    def _came_back(self) -> None:
        self._in_flight -= 1
        if self._in_flight == 0:
            self.quiet.set()
        if self._in_flight <= WINDOW // 2:
            self._news.set()

    def _let_go(self, work: Work) -> None:
        work.in_flight -= 1
        if not work.in_flight:
            self._end_if_done(work)

    def _end_if_done(self, work: Work) -> None:
        """Nothing of it is under way: it goes on, or is walked again for those who were missed, or is over."""
        alive = work.is_alive(self._now_ms)
        if alive and not work.is_walked:
            return
        if alive and work.missed:
            wait_ms = work.walk_again()
            self._later.put(self._now_ms + (wait_ms if self._credentials else min(wait_ms, _KEY_MS)), work)
        else:
            self._live.discard(work)

    @property
    def _credentials(self) -> ApnsCredentials | None:
        app = self._tools.apps.get(self._appkey)
        return self._tools.credentials_of(app) if app else None

    @property
    def _now_ms(self) -> int:
        return self._tools.clock.now_ms()
