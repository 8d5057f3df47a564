"""Sends pushes for iOS apps through Apple's service: there is no connection to wait for, and no acknowledgement."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.registry.v1.devices_pb2 import DeviceCommand, RemoveDevice
from protos.registry.v1.registry_pb2 import GetTokensRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.log_pb2 import Meta
from services.delivery.apns import ApnsPush, ApnsResult, ApnsSender, payload
from services.delivery.pace import Pace
from services.delivery.pushes import Push
from services.delivery.recorder import Recorder
from services.delivery.state import DeliveryState
from services.runtime.apps import AppDirectory
from services.runtime.clock import Clock
from services.runtime.crashpoint import Point, reached
from services.runtime.errors import CarillonError
from services.runtime.ids import event_id
from services.runtime.log import Draft, Log
from services.runtime.logs import logger
from services.runtime.peers import Peers
from services.runtime.topics import DEVICE_COMMANDS, device_key

_SLICE = 500
_FIRST_RETRY_MS = 1_000
_LAST_RETRY_MS = 900_000


class _Target(NamedTuple):
    number: int
    token: str
    msgid: int


class IosDelivery:
    """A service. One task a push; what was not accepted for Apple's sake is tried again until the push expires."""

    name = "delivery ios"

    def __init__(
        self,
        log: Log,
        state: DeliveryState,
        recorder: Recorder,
        open_sender: Callable[[], ApnsSender],
        peers: Peers,
        apps: AppDirectory,
        clock: Clock,
        shards: int,
    ) -> None:
        self._log = log
        self._state = state
        self._recorder = recorder
        self._open_sender = open_sender
        self._sender: ApnsSender | None = None
        self._peers = peers
        self._apps = apps
        self._clock = clock
        self._shards = shards
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, push: Push, partitions: Iterable[int]) -> None:
        """Send the push to everyone in its audience there who has not got it. Once for each partition."""
        task = asyncio.create_task(self._deliver(push, list(partitions)))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def run(self, ready: asyncio.Event) -> None:
        """Take up what an earlier process left; at the end, stop sending. Nothing is started before it runs."""
        self._sender = self._open_sender()
        for push in self._state.pushes.values():
            if push.is_ios:
                self.start(push, push.parts)
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._sender.close()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("an iOS push stopped; it goes on after the next start", exc_info=error)

    async def _deliver(self, push: Push, partitions: Sequence[int]) -> None:
        pace = Pace(self._clock, push.send.qps / self._shards)
        retry_ms = _FIRST_RETRY_MS
        while partitions and push.expires_ms > self._clock.now_ms():
            partitions = [p for p in partitions if not await self._deliver_partition(push, p, pace)]
            if partitions:
                await self._clock.sleep_until(self._clock.now_ms() + retry_ms)
                retry_ms = min(retry_ms * 2, _LAST_RETRY_MS)

    async def _deliver_partition(self, push: Push, partition: int, pace: Pace) -> bool:
        """Try everyone who waits; False when some must be tried again."""
        part = push.parts.get(partition)
        numbers = list(part.pending_numbers()) if part else []
        at, complete = 0, True
        while at < len(numbers):
            count = await pace.free(_SLICE)
            await self._recorder.room()
            if push.expires_ms <= self._clock.now_ms():
                return True
            complete &= await self._deliver_some(push, partition, numbers[at : at + count])
            pace.went(min(count, len(numbers) - at))
            at += count
        return complete

    async def _deliver_some(self, push: Push, partition: int, numbers: Sequence[int]) -> bool:
        app = self._apps.get(push.send.appkey)
        tokens = await self._tokens(push.send.appkey, partition, numbers)
        part = push.parts.get(partition)
        if part is None:
            return True
        if app is None or tokens is None or self._sender is None:
            return False
        targets = [
            _Target(number, token, msgid)
            for number, token in zip(numbers, tokens, strict=True)
            for msgid in part.pending_ids(number)
        ]
        for target in targets:
            if not target.token:
                self._settle(push, partition, target, OutcomeKind.OUTCOME_KIND_FAILED, "removed")
        targets = [target for target in targets if target.token]
        reached(Point.APNS_SENDING)
        results = await self._sender.send(_pushes(push, app.package, targets))
        reached(Point.APNS_ANSWERED)
        answered = list(zip(targets, results, strict=True))
        await self._remove_dead(push.send.appkey, partition, answered)
        concluded = [self._conclude(push, partition, target, result) for target, result in answered]
        await self._recorder.flush()
        return all(concluded)

    def _conclude(self, push: Push, partition: int, target: _Target, result: ApnsResult) -> bool:
        """Record what became of it; False when it must be tried again."""
        if result.status == 200:
            self._settle(push, partition, target, OutcomeKind.OUTCOME_KIND_SENT)
        elif not _is_passing(result):
            reason = result.reason or f"HTTP {result.status}"
            self._settle(push, partition, target, OutcomeKind.OUTCOME_KIND_FAILED, reason)
        return not _is_passing(result)

    def _settle(self, push: Push, partition: int, target: _Target, kind: int, reason: str = "") -> None:
        now_ms = self._clock.now_ms()
        self._recorder.settle(partition, push.send.appkey, target.msgid, target.number, kind, now_ms, reason)

    async def _remove_dead(self, appkey: str, partition: int, answered: Iterable[tuple[_Target, ApnsResult]]) -> None:
        dead = {
            target.token: self._removal(appkey, partition, target.token, result)
            for target, result in answered
            if result.status == 410 or result.reason == "BadDeviceToken"
        }
        try:
            await self._log.append(list(dead.values()))
        except CarillonError as error:
            logger.warning("dead tokens stay until the next push to them", count=len(dead), error=str(error))

    def _removal(self, appkey: str, partition: int, token: str, result: ApnsResult) -> Draft:
        command = DeviceCommand(
            meta=Meta(event_id=event_id(), time_ms=self._clock.now_ms(), writer="delivery"),
            appkey=appkey,
            token=token,
            remove=RemoveDevice(reason=result.reason, registered_before_ms=result.timestamp_ms or 0),
        )
        return Draft(DEVICE_COMMANDS.name, partition, device_key(appkey, token), command.SerializeToString())

    async def _tokens(self, appkey: str, partition: int, numbers: Sequence[int]) -> Sequence[str] | None:
        registry = RegistryServiceStub(self._peers.owner("registry", partition))
        try:
            request = GetTokensRequest(appkey=appkey, partition=partition, numbers=numbers)
            return list((await registry.GetTokens(request)).tokens)
        except CarillonError as error:
            logger.warning("the registry does not answer; trying again", error=str(error))
            return None


def _pushes(push: Push, topic: str, targets: Iterable[_Target]) -> list[ApnsPush]:
    """A repeat has the same collapse id, so that a device which got it twice shows it once."""
    body = payload(push.send.message)
    is_notif = push.send.message.is_notif
    return [
        ApnsPush(
            token=target.token,
            topic=topic,
            payload=body,
            msgid=target.msgid,
            expires_ms=push.expires_ms,
            push_type="alert" if is_notif else "background",
            priority=10 if is_notif else 5,
            collapse_id=str(target.msgid),
        )
        for target in targets
    ]


def _is_passing(result: ApnsResult) -> bool:
    """Whether it may go well later: no answer, too fast, Apple's trouble, or the sender's key is not accepted."""
    return result.unknown or result.status in (403, 429) or result.status >= 500 or result.reason == "IdleTimeout"
