"""Follows `push-commands`: fixes audiences, starts and cancels pushes, and lets them go out."""

import asyncio
from collections.abc import Mapping, Sequence

from google.protobuf.message import DecodeError
from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import OutcomeKind, PushFact
from protos.push.v1.push_pb2 import SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from protos.runtime.v1.log_pb2 import Meta
from protos.targeting.v1.targeting_pb2 import ResolveRequest
from protos.targeting.v1.targeting_pb2_grpc import TargetingServiceStub
from services.delivery import decide
from services.delivery.fanout import Fanout
from services.delivery.ios import IosDelivery
from services.delivery.journal import Entry, Journal
from services.delivery.recorder import Recorder
from services.delivery.state import DeliveryState, Waiting
from services.runtime.clock import Clock
from services.runtime.errors import CarillonError, DeadlineError, InputError, UnavailableError
from services.runtime.follower import decode
from services.runtime.log import Log, Partition, Reader, Record
from services.runtime.logs import logger
from services.runtime.metrics import PENDING, PUSHES_STARTED
from services.runtime.parking import Parking
from services.runtime.peers import Peers
from services.runtime.progress import Progress
from services.runtime.topics import PUSH_COMMANDS, PUSHES

_SOURCE = Partition(PUSH_COMMANDS.name, 0)
_RESOLVE_S = 60.0


class Commands:
    """A service. The lock is held while a batch is under way, so that a snapshot never sees half of one."""

    name = "delivery"

    def __init__(
        self,
        log: Log,
        journal: Journal,
        state: DeliveryState,
        fanout: Fanout,
        ios: IosDelivery,
        recorder: Recorder,
        peers: Peers,
        clock: Clock,
        parking: Parking,
        owned: Sequence[int],
        lock: asyncio.Lock,
    ) -> None:
        self.progress = Progress()
        self._lock = lock
        self._log = log
        self._journal = journal
        self._state = state
        self._fanout = fanout
        self._ios = ios
        self._recorder = recorder
        self._clock = clock
        self._parking = parking
        self._owned = frozenset(owned)
        channels = peers.all("targeting")
        self._targeting = [TargetingServiceStub(channel) for channel in channels]

    async def run(self, ready: asyncio.Event) -> None:
        start = self._journal.offsets.get(_SOURCE, 0)
        end = (await self._log.ends([_SOURCE]))[_SOURCE]
        self.progress.advance({_SOURCE: start})
        reader = await self._log.open({_SOURCE: start})
        try:
            while True:
                if self.progress.has(_SOURCE, end - 1):
                    ready.set()
                records = await self._read(reader)
                async with self._lock:
                    await self._batch(records)
        finally:
            await reader.close()
            await self._fanout.close()

    async def _read(self, reader: Reader) -> list[Record]:
        while True:
            try:
                return await reader.read(max_records=1000)
            except UnavailableError as error:
                logger.warning("the log does not answer", role=self.name, error=str(error))
                await asyncio.sleep(0.5)

    async def _batch(self, records: list[Record]) -> None:
        starting: list[tuple[Waiting, Meta]] = []
        for record in records:
            try:
                command = decode(record)
            except DecodeError as error:
                self._parking.park(record, error)
                continue
            match command.WhichOneof("command"):
                case "send":
                    self._state.apply(record, command)
                    if (waiting := self._state.waiting.get(command.send.msgid)) is not None:
                        starting.append((waiting, command.meta))
                case "cancel":
                    await self._start(starting)
                    starting = []
                    await self._journal.write(_entries(decide.cancel(self._state, command.cancel)), command.meta)
                case _:
                    logger.warning("a newer command is passed by", offset=record.offset)
        await self._start(starting)
        self._journal.offsets[_SOURCE] = records[-1].offset + 1
        self.progress.advance({_SOURCE: records[-1].offset + 1})
        PENDING.set(len(self._state.pushes))

    async def _start(self, starting: list[tuple[Waiting, Meta]]) -> None:
        """Fix the audiences of all these pushes in the log, then send them in order."""
        audiences = await asyncio.gather(*(self._audiences(waiting.send) for waiting, _ in starting))
        entries = [
            entry
            for (waiting, meta), audience in zip(starting, audiences, strict=True)
            for entry in _entries(decide.start(waiting, audience))
        ]
        await self._journal.write(entries)
        PUSHES_STARTED.inc(len(entries))
        for waiting, _ in starting:
            push = self._state.pushes.get(waiting.send.msgid)
            if push is None or push.expires_ms <= self._clock.now_ms():
                continue
            if push.send.platform == PLATFORM_IOS:
                self._ios.start(push)
            else:
                self._drop_overflow(push.send)
                self._fanout.start(push)

    async def _audiences(self, send: SendPush) -> Mapping[int, BitMap]:
        kind = send.audience.WhichOneof("audience")
        if kind == "devices":
            return decide.listed_audiences(send, self._owned)
        if kind not in ("everyone", "filter"):
            logger.error("a push without a usable audience reaches nobody", msgid=send.msgid)
            return {}
        while True:
            try:
                return await self._resolve(send)
            except (UnavailableError, DeadlineError) as error:
                logger.warning("targeting does not answer; trying again", msgid=send.msgid, error=str(error))
                await asyncio.sleep(0.5)
            except InputError as error:
                logger.error(
                    "targeting refuses an audience; the push reaches nobody", msgid=send.msgid, error=str(error)
                )
                return {partition: BitMap() for partition in self._owned}

    async def _resolve(self, send: SendPush) -> Mapping[int, BitMap]:
        count = len(self._targeting)
        requests = {
            shard: ResolveRequest(
                appkey=send.appkey,
                audience=send.audience,
                partitions=[partition for partition in self._owned if partition % count == shard],
            )
            for shard in range(count)
        }
        answers = await asyncio.gather(
            *(
                self._targeting[shard].Resolve(request, timeout=_RESOLVE_S)
                for shard, request in requests.items()
                if request.partitions
            )
        )
        found = {part.partition: BitMap.deserialize(part.bitmap) for answer in answers for part in answer.partitions}
        if missing := self._owned - found.keys():
            raise CarillonError(f"targeting left out partitions {sorted(missing)}")
        return found

    def _drop_overflow(self, send: SendPush) -> None:
        """Give up the oldest unicast pushes of devices whose mailbox is full."""
        if send.audience.WhichOneof("audience") != "devices":
            return
        now_ms = self._clock.now_ms()
        for partition, audience in decide.listed_audiences(send, self._owned).items():
            for number in audience:
                for msgid in decide.overflow(self._state, send.appkey, partition, number):
                    self._recorder.add(
                        partition,
                        send.appkey,
                        msgid,
                        number,
                        OutcomeKind.OUTCOME_KIND_DROPPED,
                        now_ms,
                        "mailbox full",
                    )


def _entries(facts: list[PushFact]) -> list[Entry]:
    return [Entry(PUSHES, fact.partition, str(fact.msgid).encode(), fact) for fact in facts]
