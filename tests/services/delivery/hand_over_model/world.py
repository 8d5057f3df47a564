"""A model of phones, gateways and vendors around the real code that hands messages over, driven step by step.

Everything between the log and the wire is delivery's own: state, recorder, fanout, decision, claims. A world takes
random steps in any order, among them the end of the owner between any two. `rules` judges what the log and the phones
have seen.
"""

import asyncio
import contextlib
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import Connected, OutcomeKind, Reports
from protos.push.v1.push_pb2 import (
    IMPORTANCE_HIGH,
    CancelPush,
    Everyone,
    Message,
    PushCommand,
    SendPush,
)
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, ROUTE_AUTO, ROUTE_OWN, ROUTE_VENDOR, Route
from protos.runtime.v1.log_pb2 import Meta
from services.delivery import decide
from services.delivery.channels import ClaimAnswer, ClaimedMessage, MessageClaims
from services.delivery.channels.sockets.fanout import Fanout
from services.delivery.channels.sockets.gateway_stream import GatewayStream
from services.delivery.channels.sockets.presence import Presence
from services.delivery.channels.sockets.reports import ReportIntake
from services.delivery.due_hand_overs import DueHandOvers
from services.delivery.event_writer import EventWriter, new_facts
from services.delivery.handing_over import HandOverService
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.state import serialization
from services.delivery.state.audience_parts import AppPartition, DeviceAddress
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.pushes import StartedPush
from services.domain.recorded_reasons import FixedReason
from services.domain.topics import DELIVERIES, PUSH_COMMANDS, PUSHES, TOPICS, decode
from services.log.port import NewRecord, Partition, Record
from services.process.clock import ManualClock
from testkit.delivery.records import APP, START_MS, NumberedDevice, listed_audience
from tests.services.delivery.hand_over_model.rules import CHANNELS, GRACE_MS, BrokenRuleError, OneMessage, Rules

_KIND = OutcomeKind
_PARTITIONS = (0, 1)
_PHONES = tuple(NumberedDevice(partition, number) for partition in _PARTITIONS for number in range(3))
_DAY_S = 86_400
_LARGE_WINDOW = 1000
_LOSES_ALL = 0.4
"""Share of the changes of addresses after which the phone has none, so that it leaves without one."""

_REPEATED = ("repeat", "refuse twice")


class KilledError(Exception):
    """The process of the owner has ended."""


@dataclass
class Phone:
    """A phone: what it shows, by way 0 (its own connection) or channel, and what it has still to acknowledge.

    The app drops a message id that came over its own connection before. The system replaces what the same channel
    showed under the same tag, and what the app showed under it; the app cannot see what the system shows.
    """

    device: NumberedDevice
    connection: int = 0
    stream: "Stream | None" = None
    shown: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    unacknowledged: list[int] = field(default_factory=list)

    def show(self, msgid: int, way: int) -> bool:
        """Show a message; return whether a person sees it a second time."""
        ways = self.shown[msgid]
        is_second = bool(ways) and way not in ways and ways != [0]
        if way not in ways:
            ways.append(way)
        if not way and msgid not in self.unacknowledged:
            self.unacknowledged.append(msgid)
        return is_second


class Stream(GatewayStream):
    """The stream to a gateway, which keeps the frames until the world delivers them."""

    def __init__(self, owner: "Owner") -> None:
        super().__init__(lambda _: False)
        self.owner = owner
        self.frames: list[tuple[int, int]] = []

    def send(self, push: StartedPush, connections: "array[int]", msgids: "array[int]") -> None:
        ids = msgids if len(msgids) > 1 else array("Q", [msgids[0]]) * len(connections)
        for connection, msgid in zip(connections, ids, strict=True):
            self.owner.world.rules.sends(msgid, self.owner.world.phone_over(connection))
            self.frames.append((connection, msgid))

    def close(self, connection: int, reason: str) -> None:
        pass


class Request(NamedTuple):
    """A request on its way to a vendor, and the owner that waits for the answer."""

    owner: "Owner"
    message: ClaimedMessage
    claims: MessageClaims


class Vendors:
    """The senders of all channels, scripted: accept, refuse for certain, fail, lose a request or an answer, be late."""

    def __init__(self, world: "World", owner: "Owner") -> None:
        self.world = world
        self.owner = owner
        self.queue: list[Request] = []

    is_any_usable = True

    def of_app(self, appkey: str) -> Sequence[int]:
        return CHANNELS

    def usable(self, appkey: str) -> Sequence[int]:
        return [channel for channel in CHANNELS if channel not in self.world.stopped]

    def can_carry(self, channel: int, push: StartedPush) -> bool:
        return True

    def addressed(self, app_partition: AppPartition, channel: int) -> BitMap:
        return self.world.addresses[app_partition[1], channel]

    def route(self, appkey: str) -> "Route.ValueType":
        return self.world.route

    def window(self, appkey: str, channel: int) -> int:
        return self.world.window

    def send(self, messages: Sequence[ClaimedMessage], claims: MessageClaims) -> None:
        for message in messages:
            self.world.rules.gives(self.owner, message, claims)
        self.queue += [Request(self.owner, message, claims) for message in messages]

    def request(self) -> None:
        """Make one of the requests that are queued, or give it up."""
        request = self.queue.pop(self.world.random.randrange(len(self.queue)))
        if self.owner.hand_overs.begin_request(request.message):
            self.world.rules.requests(request.message)
            self.world.network.append(request)
        else:
            request.claims.answered(request.message, ClaimAnswer.GIVEN_UP, "")


class ModelLog:
    """The log in memory. `dies`: the owner ends at its next append, before (False) or after (True) it is stored."""

    topics = TOPICS

    def __init__(self, world: "World") -> None:
        self.world = world
        self.records: list[Record] = []
        self.dies: bool | None = None
        self._ends: dict[tuple[str, int], int] = {}

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        dies, self.dies = self.dies, None
        if dies is False:
            raise KilledError
        records = [self._record(new_record) for new_record in new_records]
        self.records += records
        for record in records:
            self.world.rules.reads(record)
        if dies:
            raise KilledError
        return [record.offset for record in records]

    def _record(self, new_record: NewRecord) -> Record:
        partition = new_record.topic, new_record.partition
        offset = self._ends[partition] = self._ends.get(partition, -1) + 1
        return Record(*new_record[:2], offset, *new_record[2:])


class Owner:
    """One process of delivery that owns the partitions, folded from the log, or from a snapshot and the log."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.state = DeliveryState(_PARTITIONS)
        start = 0
        if world.snapshot is not None:
            start, blobs = world.snapshot
            serialization.load(self.state, blobs)
        offsets: dict[Partition, int] = {}
        events = EventWriter(world.log, self.state, world.clock, offsets)  # type: ignore[arg-type]
        for topic in (PUSH_COMMANDS, PUSHES, DELIVERIES):
            for record in world.log.records[start:]:
                if record.topic == topic.name:
                    events.apply(record, decode(record))
        restored_offset = sum(record.topic == PUSH_COMMANDS.name for record in world.log.records)
        self.events = events
        self.recorder = OutcomeRecorder(events)
        self.presence = Presence()
        self.vendors = Vendors(world, self)
        self.due = DueHandOvers(
            self.state, self.presence, self.recorder, lambda _: world.is_paused, self.vendors, GRACE_MS
        )
        apps: Any = SimpleNamespace(is_paused=lambda _: world.is_paused)
        self.fanout = Fanout(self.state, self.presence, self.recorder, apps, world.clock, 1, self.due)
        self.hand_overs = HandOverService(self.state, self.due, self.fanout, self.recorder, self.vendors, world.clock)
        self.intake = ReportIntake(self.state, self.fanout, self.recorder, lambda: restored_offset)
        self.stream = Stream(self)
        self.step: asyncio.Task[bool] | None = None
        self.began_ms = world.clock.now_ms()
        self.acknowledged: set[OneMessage] = set()
        self._watch_claims()

    def _watch_claims(self) -> None:
        record = self.recorder.record_claim

        def watched(partition: int, appkey: str, msgid: int, numbers: BitMap, time_ms: int, channel: int) -> None:
            for number in numbers:
                self.world.rules.claims(self, msgid, NumberedDevice(partition, number))
            record(partition, appkey, msgid, numbers, time_ms, channel)

        self.recorder.record_claim = watched  # type: ignore[method-assign]

        answer = self.recorder.record_answer

        def watched_answer(partition: int, appkey: str, msgid: int, number: int, *rest: Any) -> None:
            if FixedReason.RECALLED in rest:
                self.world.rules.recalls(msgid, NumberedDevice(partition, number))
            answer(partition, appkey, msgid, number, *rest)

        self.recorder.record_answer = watched_answer  # type: ignore[assignment]


class World:
    """Phones, one app, a log, and the present owner."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.window = _LARGE_WINDOW
        self.clock = ManualClock(START_MS)
        self.log = ModelLog(self)
        self.rules = Rules(self)
        self.phones = {device: Phone(device) for device in _PHONES}
        self.addresses = {(partition, channel): BitMap() for partition in _PARTITIONS for channel in CHANNELS}
        for phone, channel in [(phone, channel) for phone in _PHONES for channel in CHANNELS]:
            if self.random.random() < 0.6:
                self.addresses[phone.partition, channel].add(phone.number)
        self.stopped: set[int] = set()
        self.route: Route.ValueType = ROUTE_AUTO
        self.is_paused = False
        self.is_down = False
        self.later: list[Request] = []
        self.network: list[Request] = []
        self.answers: list[tuple[Request, ClaimAnswer, str]] = []
        self.repeated: list[tuple[Request, ClaimAnswer, str]] = []
        self.snapshot: tuple[int, list[serialization.Blob]] | None = None
        self.pushes: dict[int, SendPush] = {}
        self.next_msgid = 1000
        self.next_connection = 1
        self.left_ms: dict[NumberedDevice, int] = {}
        self.owner = Owner(self)

    @property
    def has_small_window(self) -> bool:
        """Whether a message may have to wait until a channel has answered others."""
        return self.window < _LARGE_WINDOW

    def phone_over(self, connection: int) -> Phone | None:
        return next((phone for phone in self.phones.values() if phone.connection == connection), None)

    # --- running

    async def run(self, steps: int) -> None:
        """Take random steps, then let everything come to its end, and check the rules."""
        await self.owner.hand_overs.begin()
        names = list(_STEPS)
        rarer = self.random.choice((0, 0.2, 1))
        weights = [_STEPS[name] * (rarer if name in _TROUBLE else 1) for name in names]
        for name in self.random.choices(names, weights, k=steps):
            await self._guarded(name)
        await self._settle()
        self.rules.check_settled()
        await self._end()
        self.rules.check_ended()

    async def _guarded(self, name: str) -> None:
        try:
            await getattr(self, f"_{name}")()
            step = self.owner.step
            if step is not None and step.done():
                self.owner.step = None
                step.result()
        except KilledError:
            await self._restart()

    async def _settle(self) -> None:
        """Connect half of the phones, and let channels answer until nothing is left to do; or let them be down."""
        self.is_down = self.random.random() < 0.5
        self.is_paused, self.stopped = False, set(self.random.choice(((), (), CHANNELS)))
        self.log.dies = None
        if self.is_down:
            self.later, self.owner.vendors.queue = self.owner.vendors.queue, []
        self.owner.hand_overs.channels_changed(APP)
        await self.owner.fanout.resume()
        for phone in list(self.phones.values())[::2]:
            if not phone.connection:
                self._open(phone)
        for phone in list(self.phones.values())[1::2]:
            if phone.connection:
                self._close(phone)
        await self._drain()
        if self.is_down:
            await self._change_route()
        for _ in range(6):
            await self._drain()
            self.clock.move(GRACE_MS / 1000)

    async def _drain(self) -> None:
        for _ in range(200):
            await self._step()
            await self._flush()
            while self.owner.vendors.queue:
                self.owner.vendors.request()
            while self.network:
                answers = ("postpone",) if self.is_down else ("accept", "refuse", "fail", "accept")
                self._handle(self.random.choice(answers))
            while self.answers:
                self._answer()
            for phone in self.phones.values():
                if phone.connection:
                    await self._frames()
                    self._acknowledge(phone)
            self.owner.fanout.refill()
            await self._flush()
            if self.owner.step is None and not await self._is_busy():
                return
        self.rules.broken("nothing comes to an end")

    async def _is_busy(self) -> bool:
        owner, now_ms = self.owner, self.clock.now_ms()
        next_ms = owner.due.next_ms(now_ms)
        await self._step()
        await self._flush()
        is_due = next_ms is not None and next_ms <= now_ms
        return is_due or owner.step is not None or bool(owner.vendors.queue or self.network or owner.stream.frames)

    async def _end(self) -> None:
        """Let all pushes expire."""
        self.is_down = False
        self.owner.vendors.queue += self.later
        self.clock.move(2 * _DAY_S)
        await self._sweep()
        for _ in range(3):
            await self._drain()

    # --- steps: the app server

    async def _push(self) -> None:
        listed = self.random.random() < 0.6
        devices = self.random.sample(_PHONES, self.random.randint(1, len(_PHONES)))
        own_ids = listed and self.random.random() < 0.3
        send = SendPush(
            msgid=self.next_msgid,
            id_count=len(devices) if own_ids else 1,
            appkey=APP,
            platform=PLATFORM_ANDROID,
            message=Message(content="x"),
            period_s=self.random.choice((20, 3600, _DAY_S)),
        )
        if listed:
            send.audience.CopyFrom(listed_audience(*devices, own_ids=own_ids))
        else:
            send.audience.everyone.CopyFrom(Everyone())
            devices = list(_PHONES)
        if self.random.random() < 0.3:
            send.channel.route = self.random.choice((ROUTE_AUTO, ROUTE_OWN, ROUTE_VENDOR))
        if self.random.random() < 0.3:
            send.channel.importance = IMPORTANCE_HIGH
        self.next_msgid += 10
        self.pushes[send.msgid] = send
        self.rules.requested(send, devices, own_ids=own_ids)
        await self._command(PushCommand(meta=Meta(time_ms=self.clock.now_ms()), send=send))
        await self._start_requested()

    async def _start_requested(self) -> None:
        """Start what is requested, as the starter does; after a crash between command and start too."""
        state = self.owner.state
        for push in list(state.requested.values()):
            everyone = BitMap(phone.number for phone in _PHONES if phone.partition == 0)
            audiences = {
                partition: BitMap(push.targets(partition)) if push.is_listed else everyone
                for partition in push.remaining
            }
            await self.owner.events.write(PUSHES, new_facts(decide.start(push, audiences)))
            started = state.started.get(push.send.msgid)
            if started is not None and state.may_send(started, self.clock.now_ms()):
                self.owner.fanout.start(started, [each for each in audiences if each in started.active_parts])

    async def _command(self, command: PushCommand) -> None:
        (offset,) = await self.log.append([NewRecord(PUSH_COMMANDS.name, 0, b"", command.SerializeToString())])
        record = Record(PUSH_COMMANDS.name, 0, offset, b"", command.SerializeToString())
        self.owner.events.apply(record, command)

    async def _repeat_command(self) -> None:
        if self.pushes:
            send = self.random.choice(list(self.pushes.values()))
            await self._command(PushCommand(meta=Meta(time_ms=self.clock.now_ms()), send=send))
            await self._start_requested()

    async def _cancel(self) -> None:
        if self.pushes:
            msgid = self.random.choice(list(self.pushes))
            await self._command(
                PushCommand(meta=Meta(time_ms=self.clock.now_ms()), cancel=CancelPush(msgid=msgid, appkey=APP))
            )
            await self._sweep()

    async def _sweep(self) -> None:
        state = self.owner.state
        expired = state.pop_expired(self.clock.now_ms())
        facts = [*decide.cancel(state), *(fact for push in expired for fact in decide.finish(push))]
        await self.owner.events.write(PUSHES, new_facts(facts))

    async def _pause(self) -> None:
        self.is_paused = not self.is_paused
        if not self.is_paused:
            await self.owner.fanout.resume()

    async def _change_alias(self) -> None:
        phone = self.random.choice(_PHONES)
        device = DeviceAddress(APP, *phone)
        for msgid, push in self.owner.state.pending(device):
            if push.is_listed:
                self.owner.recorder.record_withdrawn(device, msgid, self.clock.now_ms())
                self.owner.fanout.acknowledge(device, msgid)

    # --- steps: phones and gateways

    async def _connect(self) -> None:
        phone = self.random.choice(list(self.phones.values()))
        if phone.connection:
            self._close(phone)
        else:
            self._open(phone)

    def _open(self, phone: Phone) -> None:
        phone.connection, self.next_connection = self.next_connection, self.next_connection + (1 << 20)
        self.left_ms.pop(phone.device, None)
        self._announce([phone])

    def _announce(self, phones: Sequence[Phone]) -> None:
        for phone in phones:
            phone.stream = self.owner.stream
        self.owner.fanout.connect(
            self.owner.stream,
            [
                Connected(connection=each.connection, appkey=APP, partition=each.device[0], number=each.device[1])
                for each in phones
            ],
        )

    def _close(self, phone: Phone) -> None:
        connection, phone.connection = phone.connection, 0
        self.left_ms[phone.device] = self.clock.now_ms()
        self.owner.fanout.disconnect(self.owner.stream, [connection])

    async def _break_stream(self) -> None:
        """The stream of the gateway breaks, with the frames in it; its phones are announced again over a new one."""
        self.owner.fanout.remove_gateway(self.owner.stream)
        self.owner.stream = Stream(self.owner)
        self._announce([phone for phone in self.phones.values() if phone.connection])

    async def _frames(self) -> None:
        """Bring the frames to the phones; those of connections that have ended are lost."""
        frames, self.owner.stream.frames = self.owner.stream.frames, []
        for connection, msgid in frames:
            if (phone := self.phone_over(connection)) is not None and phone.show(msgid, 0):
                self.rules.broken(f"shown twice: {msgid} on {phone.device} by {phone.shown[msgid]}")

    async def _acknowledgement(self) -> None:
        phone = self.random.choice(list(self.phones.values()))
        if phone.connection:
            self._acknowledge(phone)

    def _acknowledge(self, phone: Phone) -> None:
        acknowledged, phone.unacknowledged = phone.unacknowledged, []
        for msgid in acknowledged:
            self._report(phone.device, msgid)

    async def _acknowledge_and_leave(self) -> None:
        phone = self.random.choice(list(self.phones.values()))
        if phone.connection:
            self._acknowledge(phone)
            self._close(phone)

    async def _acknowledge_over_http(self) -> None:
        """The app of a phone without a connection reports what a channel has shown."""
        phone = self.random.choice(list(self.phones.values()))
        by_channels = [msgid for msgid, ways in phone.shown.items() if ways != [0]]
        if by_channels:
            self._report(phone.device, self.random.choice(by_channels))

    def _report(self, device: NumberedDevice, msgid: int) -> None:
        self.owner.acknowledged.add((msgid, device))
        self.owner.intake.record(
            Reports(
                appkey=APP,
                partitions=array("H", [device.partition]).tobytes(),
                numbers=array("I", [device.number]).tobytes(),
                msgids=array("Q", [msgid]).tobytes(),
                kinds=bytes([_KIND.OUTCOME_KIND_RECEIVED]),
                times_ms=array("q", [self.clock.now_ms()]).tobytes(),
            )
        )
        self.owner.fanout.refill()

    # --- steps: channels

    async def _step(self) -> None:
        """Let the service take its next step; it waits for the log then."""
        if self.owner.step is None:
            self.owner.step = asyncio.create_task(self.owner.hand_overs.step())
        await _run_ready()

    async def _flush(self) -> None:
        await self.owner.recorder.flush()
        await _run_ready()
        step = self.owner.step
        if step is not None and step.done():
            self.owner.step = None
            step.result()

    async def _request(self) -> None:
        if self.owner.vendors.queue:
            self.owner.vendors.request()

    async def _vendor(self) -> None:
        if self.network:
            self._handle(
                self.random.choices(
                    (*("accept", "lose answer", "lose request", "late", "refuse", "fail"), *_REPEATED, "postpone"),
                    (30, 10, 10, 10, 15, 5, 10, 20, 30),
                )[0]
            )

    def _handle(self, behaviour: str) -> None:
        request = self.network.pop(self.random.randrange(len(self.network)))
        message = request.message
        phone = self.phones[NumberedDevice(message.partition, message.number)]
        answers = {
            "accept": [ClaimAnswer.ACCEPTED],
            "repeat": [ClaimAnswer.ACCEPTED] * 2,
            "late": [ClaimAnswer.UNANSWERED, ClaimAnswer.ACCEPTED],
            "lose answer": [ClaimAnswer.UNANSWERED],
            "lose request": [ClaimAnswer.UNANSWERED],
            "refuse": [ClaimAnswer.REFUSED],
            "refuse twice": [ClaimAnswer.REFUSED] * 2,
            "fail": [ClaimAnswer.FAILED],
            "postpone": [ClaimAnswer.POSTPONED],
        }[behaviour]
        if behaviour in ("accept", "repeat", "late", "lose answer") and phone.show(message.msgid, message.channel):
            ways = phone.shown[message.msgid]
            self.rules.broken(f"shown twice: {message.msgid} on {phone.device} by {ways}")
        first, *repeated = [
            (request, answer, "" if answer is ClaimAnswer.ACCEPTED else behaviour) for answer in answers
        ]
        self.answers.append(first)
        (self.answers if behaviour == "late" else self.repeated).extend(repeated)

    async def _answers(self) -> None:
        if self.answers:
            self._answer()

    async def _repeated_answer(self) -> None:
        if self.repeated:
            self.answers.insert(0, self.repeated.pop(self.random.randrange(len(self.repeated))))
            self._answer()

    def _answer(self) -> None:
        request, answer, reason = self.answers.pop(0)
        if request.owner is not self.owner:
            return
        self.rules.answers(request.message, answer)
        request.claims.answered(request.message, answer, reason)
        if answer is ClaimAnswer.POSTPONED and self.is_down:
            self.later.append(request)
        elif answer in (ClaimAnswer.UNANSWERED, ClaimAnswer.POSTPONED) and not any(
            (each.message.device, each.message.key) == (request.message.device, request.message.key)
            for each in self._queued()
        ):
            self.owner.vendors.queue.append(request)

    def _queued(self) -> list[Request]:
        """Return the requests of the present owner that it is to make, that are on their way, or that are answered."""
        found = [*self.owner.vendors.queue, *self.network, *(request for request, _, _ in self.answers)]
        return [request for request in found if request.owner is self.owner]

    async def _channels_changed(self) -> None:
        self.stopped = {channel for channel in self.stopped if self.random.random() < 0.5}
        self.owner.hand_overs.channels_changed(APP)

    async def _change_route(self) -> None:
        former, self.route = self.route, self.random.choice((ROUTE_AUTO, ROUTE_OWN, ROUTE_VENDOR))
        self.owner.hand_overs.channels_changed(APP, was_vendor_first=former == ROUTE_VENDOR)

    async def _stop_channel(self) -> None:
        self.stopped.add(self.random.choice(CHANNELS))
        self.owner.hand_overs.channels_changed(APP)

    async def _change_address(self) -> None:
        """Change a phone's address on a channel, or let it lose the addresses on all of them."""
        phone, chosen = self.random.choice(_PHONES), self.random.choice(CHANNELS)
        if self.random.random() < _LOSES_ALL:
            for channel in CHANNELS:
                self.addresses[phone.partition, channel] -= BitMap([phone.number])
        else:
            self.addresses[phone.partition, chosen] ^= BitMap([phone.number])
        self.owner.hand_overs.channels_changed(APP)

    # --- steps: time and ends of processes

    async def _time(self) -> None:
        self.clock.move(self.random.choice((0.1, 1, 5, 16, 16)))
        await self._sweep()

    async def _kill(self) -> None:
        raise KilledError

    async def _kill_at_append(self) -> None:
        self.log.dies = self.random.random() < 0.5

    async def _save(self) -> None:
        """Take a snapshot whose offsets are older than some of its blobs, as happens while facts are folded."""
        at = len(self.log.records)
        blobs = serialization.dump(self.owner.state)
        taken = [blob for _, blob in zip(range(self.random.randint(0, 12)), blobs, strict=False)]
        await self._flush()
        self.snapshot = at, [*taken, *blobs]

    async def _restart(self) -> None:
        """The owner ends, with all that the log does not have; another one takes over."""
        self.log.dies = None
        if self.owner.step is not None:
            self.owner.step.cancel()
            with contextlib.suppress(asyncio.CancelledError, KilledError):
                await self.owner.step
        self.owner = Owner(self)
        self.rules.restarts()
        await self.owner.hand_overs.begin()
        await self._start_requested()
        await self._sweep()
        if self.random.random() < 0.7:
            self._announce([phone for phone in self.phones.values() if phone.connection])
        else:
            for phone in self.phones.values():
                phone.connection = 0


_STEPS = {
    "push": 9,
    "repeat_command": 1,
    "cancel": 2,
    "pause": 1,
    "change_alias": 1,
    "connect": 12,
    "break_stream": 1,
    "frames": 20,
    "acknowledgement": 15,
    "acknowledge_and_leave": 10,
    "acknowledge_over_http": 4,
    "step": 20,
    "flush": 18,
    "request": 30,
    "vendor": 30,
    "answers": 30,
    "repeated_answer": 5,
    "channels_changed": 2,
    "stop_channel": 1,
    "change_address": 3,
    "change_route": 3,
    "time": 15,
    "kill": 2,
    "kill_at_append": 3,
    "save": 2,
}
"""The steps and how often each is taken."""


_TROUBLE = frozenset({"kill", "kill_at_append", "break_stream", "pause", "stop_channel"})
"""Steps that are rarer in some worlds, so that more hand-overs come to their end."""


async def _run_ready() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


def run_worlds(seeds: Sequence[int], steps: int = 200) -> int:
    """Run a world for each seed; return how many messages they had. BrokenRuleError: names the seed."""

    async def run() -> int:
        messages = 0
        for seed in seeds:
            world = World(seed)
            try:
                world.window = world.random.choice((1, 3, _LARGE_WINDOW))
                await world.run(steps)
            except BrokenRuleError as error:
                raise BrokenRuleError(f"world {seed}: {error}") from error
            messages += len(world.rules.told)
        return messages

    return asyncio.run(run())
