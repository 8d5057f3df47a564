"""Sends pushes for iOS apps through Apple's service: there is no connection to wait for, and no acknowledgement."""

import asyncio
from collections.abc import Callable, Sequence

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from protos.registry.v1.devices_pb2 import DeviceCommand, RemoveDevice
from protos.registry.v1.registry_pb2 import GetTokensRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.log_pb2 import Meta
from services.delivery.apns import ApnsPush, ApnsResult, ApnsSender, payload
from services.delivery.recorder import Recorder
from services.delivery.state import DeliveryState, Push
from services.runtime.apps import AppDirectory
from services.runtime.clock import Clock
from services.runtime.errors import DeadlineError, UnavailableError
from services.runtime.ids import event_id
from services.runtime.log import Draft, Log
from services.runtime.logs import logger
from services.runtime.peers import Peers
from services.runtime.topics import DEVICE_COMMANDS, device_key

_CHUNK = 500
_FIRST_RETRY_MS = 1_000
_LAST_RETRY_MS = 900_000
_RETRIED = frozenset({0, 429, 500, 503})


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
    ) -> None:
        self._log = log
        self._state = state
        self._recorder = recorder
        self._open_sender = open_sender
        self._sender: ApnsSender | None = None
        self._peers = peers
        self._apps = apps
        self._clock = clock
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def start(self, push: Push) -> None:
        """Send the push to everyone in its audience who has not got it."""
        if push.msgid not in self._tasks:
            task = asyncio.create_task(self._deliver(push))
            self._tasks[push.msgid] = task
            task.add_done_callback(lambda task: self._ended(push, task))

    async def run(self, ready: asyncio.Event) -> None:
        """Take up what an earlier process left; at the end, stop sending. Nothing is started before it runs."""
        self._sender = self._open_sender()
        for push in list(self._state.pushes.values()):
            if push.send.platform == PLATFORM_IOS:
                self.start(push)
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._sender.close()

    def _ended(self, push: Push, task: "asyncio.Task[None]") -> None:
        del self._tasks[push.msgid]
        if not task.cancelled() and (error := task.exception()):
            logger.error("an iOS push stopped; it goes on after the next start", exc_info=error)

    async def _deliver(self, push: Push) -> None:
        retry_ms = _FIRST_RETRY_MS
        while push.expires_ms > self._clock.now_ms():
            again = False
            for partition in list(push.parts):
                again |= await self._deliver_partition(push, partition)
            if not again:
                return
            await self._clock.sleep_until(self._clock.now_ms() + retry_ms)
            retry_ms = min(retry_ms * 2, _LAST_RETRY_MS)

    async def _deliver_partition(self, push: Push, partition: int) -> bool:
        """Whether some devices must be tried again."""
        part = push.parts.get(partition)
        numbers = list(part.pending_numbers()) if part else []
        again = False
        chunk = min(_CHUNK, push.send.qps or _CHUNK)
        for at in range(0, len(numbers), chunk):
            if partition not in push.parts or push.expires_ms <= self._clock.now_ms():
                return False
            again |= await self._deliver_some(push, partition, numbers[at : at + chunk])
            if push.send.qps and at + chunk < len(numbers):
                await self._clock.sleep_until(self._clock.now_ms() + chunk * 1000 // push.send.qps)
            await self._recorder.room()
        return again

    async def _deliver_some(self, push: Push, partition: int, numbers: Sequence[int]) -> bool:
        tokens = await self._tokens(push.send.appkey, partition, numbers)
        if tokens is None:
            return True
        part = push.parts[partition]
        entries = [
            (number, token, msgid)
            for number, token in zip(numbers, tokens, strict=True)
            for msgid in part.pending_ids(number)
        ]
        now_ms = self._clock.now_ms()
        for number, token, msgid in entries:
            if not token:
                self._record(push, partition, number, msgid, OutcomeKind.OUTCOME_KIND_FAILED, now_ms, "removed")
        entries = [entry for entry in entries if entry[1]]
        app = self._apps.get(push.send.appkey)
        body = payload(push.send.message)
        background = not push.send.message.is_notif
        assert self._sender is not None
        results = await self._sender.send(
            [
                ApnsPush(
                    token=token,
                    topic=app.package if app else "",
                    payload=body,
                    msgid=msgid,
                    expires_ms=push.expires_ms,
                    push_type="background" if background else "alert",
                    priority=5 if background else 10,
                    collapse_id=str(msgid),
                )
                for _, token, msgid in entries
            ]
        )
        return await self._settle(push, partition, entries, results)

    async def _settle(
        self, push: Push, partition: int, entries: Sequence[tuple[int, str, int]], results: Sequence[ApnsResult]
    ) -> bool:
        again = False
        now_ms = self._clock.now_ms()
        dead: list[Draft] = []
        for (number, token, msgid), result in zip(entries, results, strict=True):
            if result.status == 200:
                self._record(push, partition, number, msgid, OutcomeKind.OUTCOME_KIND_SENT, now_ms)
            elif result.status in _RETRIED:
                again = True
            else:
                self._record(push, partition, number, msgid, OutcomeKind.OUTCOME_KIND_FAILED, now_ms, result.reason)
            if result.status == 410 or result.reason == "BadDeviceToken":
                dead.append(self._removal(push.send.appkey, partition, token, result))
        if dead:
            await self._log.append(dead)
        await self._recorder.flush()
        return again

    def _record(
        self, push: Push, partition: int, number: int, msgid: int, kind: int, now_ms: int, reason: str = ""
    ) -> None:
        self._recorder.add(partition, push.send.appkey, msgid, number, kind, now_ms, reason)

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
            answer = await registry.GetTokens(request)
        except (UnavailableError, DeadlineError) as error:
            logger.warning("the registry does not answer; trying again", error=str(error))
            return None
        tokens: Sequence[str] = answer.tokens
        return tokens
