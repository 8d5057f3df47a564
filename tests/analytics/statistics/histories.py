"""Random histories of an app over months, as the registry, gateways and delivery write them to the log."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import OutcomeKind, PushFact, PushStarted
from protos.gateway.v1.sessions_pb2 import SessionEventKind
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App
from protos.registry.v1.devices_pb2 import (
    REGISTRATION_AUTHORITY_CODE,
    REGISTRATION_AUTHORITY_KEY,
    REGISTRATION_AUTHORITY_TOKEN,
    Attributes,
    Device,
    DeviceCommand,
    RegisterDevice,
    RegistrationAuthority,
    RemoveDevice,
    SetAttributes,
)
from protos.runtime.v1.log_pb2 import Meta, Position
from services.domain.topics import DEVICE_COMMANDS, DEVICES, PUSHES, SESSIONS, device_key
from services.log.port import NewRecord, Record
from services.log.topics import partition_of
from services.registry.rules import DeviceRules
from services.registry.store import DEVICES_DDL, DeviceTable
from services.replica.sqlite_store import SqliteStore
from tests.analytics.records import (
    APP,
    PARTITIONS,
    T0,
    app_outcomes,
    connection_counts,
    finished,
    meta,
    new_record,
    outcomes,
    send,
    session,
)

MINUTE_MS = 60_000
GATEWAYS = ("g1", "g2")
VALUES = {
    "region": ("北京市", "上海市", "广东省"),
    "carrier": ("cm", "cu"),
    "channel": ("store", "web"),
    "sdk_version": ("1", "2"),
    "brand": ("a", "b", "c"),
    "resolution": ("1x1", "2x2"),
    "os_version": ("13", "14"),
    "app_version": ("1", "2", "3"),
}
_EVENT = SessionEventKind
_TOKENS = [f"t{number}" for number in range(8)]


class RandomHistory:
    """Makes the records of one app, whose devices the registry's rules decide; it moves the clock `now_ms`."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.now_ms = T0
        self.msgids: list[int] = []
        self._random = random.Random(seed)
        self._store = SqliteStore(directory / "devices.sqlite", DEVICES_DDL)
        self._devices = DeviceTable(self._store)
        app = App(appkey=APP, platform=PLATFORM_ANDROID)
        self._rules = DeviceRules(self._devices, lambda appkey: app, PARTITIONS, writes_other_topics=True)
        self._ends: Counter[tuple[str, int]] = Counter()
        self._made: list[NewRecord] = []
        self._repeated: list[NewRecord] = []
        self._open: dict[str, tuple[int, str, Device]] = {}
        self._serial = 0

    def close(self) -> None:
        self._store.close()

    def records(self, steps: int) -> Iterator[NewRecord]:
        """Yield the records of some steps, in the order of the log."""
        for _ in range(steps):
            self.pass_time(self._random.choice((1_000, 20_000, MINUTE_MS, 3_600_000, 8 * 3_600_000, 40 * 3_600_000)))
            self._step()
            yield from self.taken()

    def taken(self) -> list[NewRecord]:
        """Return the records made since the last call."""
        made, self._made = self._made, []
        return made

    def device(self, token: str) -> Device:
        device = self._devices.find(APP, token)
        assert device is not None
        return device

    def _step(self) -> None:
        token = self._random.choice(_TOKENS)
        device = self._devices.find(APP, token)
        if device is None or device.removed_ms:
            self._register(token, device)
            return
        steps = (self._connect, self._connect, self._change, self._leave, self._log_in, self.broadcast)
        self._random.choices(steps, (4, 4, 2, 1, 4, 2))[0](token, device)

    def pass_time(self, time_ms: int) -> None:
        """Let time pass; gateways count before and after."""
        self.count([self.now_ms])
        self.now_ms += self._random.randrange(1, time_ms + 1)
        self.count([self.now_ms])

    def count(self, times_ms: Iterable[int]) -> None:
        """Have the gateways count their connections in the minutes of these times."""
        for minute_ms in (time_ms // MINUTE_MS * MINUTE_MS for time_ms in times_ms):
            for gateway in GATEWAYS:
                self._append(connection_counts(minute_ms, {APP: len(self._open)}, gateway))

    def _register(self, token: str, device: Device | None) -> None:
        known = REGISTRATION_AUTHORITY_KEY if device and self._random.random() < 0.5 else REGISTRATION_AUTHORITY_TOKEN
        self.command(token, register=self._registration(known, device))

    def _registration(self, authority: RegistrationAuthority.ValueType, device: Device | None) -> RegisterDevice:
        number = device.number if device else 0
        return RegisterDevice(
            platform=PLATFORM_ANDROID, attributes=self._attributes(), authority=authority, proven_number=number
        )

    def _connect(self, token: str, device: Device) -> None:
        """Open a connection, whose device may change its attributes 0.2 s, 3 s or 90 s later, and maybe log in."""
        self._serial += 1
        gateway = self._random.choice(GATEWAYS)
        self.session_event(device, _EVENT.SESSION_EVENT_KIND_OPENED, self._serial, gateway)
        self._open[token] = self._serial, gateway, device
        for delay_ms in self._random.choice(((), (200,), (3_000,), (200, 90_000), (90_000,))):
            self.pass_time(delay_ms)
            self._change(token, device)
        if self._random.random() < 0.3:
            self._log_in(token, device)
        if self._random.random() < 0.6:
            self.pass_time(3_600_000)
            self._leave_connection(token)

    def _leave_connection(self, token: str) -> None:
        if token in self._open:
            connection, gateway, device = self._open.pop(token)
            self.session_event(device, _EVENT.SESSION_EVENT_KIND_CLOSED, connection, gateway)

    def _change(self, token: str, device: Device) -> None:
        self.command(token, set_attributes=SetAttributes(attributes=self._attributes()))

    def _leave(self, token: str, device: Device) -> None:
        """Uninstall the app, or get another number by a code."""
        self._leave_connection(token)
        if self._random.random() < 0.3:
            self.command(token, register=self._registration(REGISTRATION_AUTHORITY_CODE, device))
        else:
            self.command(token, remove=RemoveDevice(reason="unregistered"))

    def _log_in(self, token: str, device: Device) -> None:
        self.session_event(device, _EVENT.SESSION_EVENT_KIND_LOGGED_IN, 0, "http")

    def broadcast(self, token: str, device: Device) -> None:
        """Send to every device; a start names an offset of sessions that targeting had read then, or just before."""
        msgid = 1_000 + len(self.msgids)
        self.msgids.append(msgid)
        self._append(send(msgid, time_ms=self.now_ms))
        for partition in range(PARTITIONS):
            found = (self._devices.find(APP, each) for each in _TOKENS)
            numbers = BitMap(d.number for d in found if d and not d.removed_ms and d.partition == partition)
            until = 1 + max(0, self._ends[SESSIONS.name, partition] - self._random.randrange(3))
            started = PushStarted(
                audience=numbers.serialize(),
                count=len(numbers),
                expires_ms=self.now_ms + MINUTE_MS,
                attributes_until=until,
            )
            fact = PushFact(meta=meta(f"started {msgid} {partition}", self.now_ms), msgid=msgid, appkey=APP)
            fact.partition = partition
            fact.started.CopyFrom(started)
            self._append(new_record(PUSHES.name, partition, fact))
            if numbers:
                reached = [number for number in numbers if self._random.random() < 0.6]
                kind = self._random.choice((OutcomeKind.OUTCOME_KIND_RECEIVED, OutcomeKind.OUTCOME_KIND_SHOWN))
                app = app_outcomes(msgid, reached, kind, self.now_ms + 5)
                self._append(outcomes(partition, app, seed=f"outcomes {msgid} {partition}"))
            self._append(finished(msgid, partition, self.now_ms + MINUTE_MS))

    def session_event(self, device: Device, kind: SessionEventKind.ValueType, connection: int, gateway: str) -> None:
        self._append(
            session(device.number, kind, self.now_ms, device.partition, connection=connection, gateway=gateway)
        )

    def _attributes(self) -> Attributes:
        """Return what a device reports: a part of its attributes."""
        reported = self._random.sample(sorted(VALUES), self._random.randrange(len(VALUES) + 1))
        return Attributes(**{name: self._random.choice(VALUES[name]) for name in reported})

    def command(self, token: str, **command: Any) -> None:
        partition = partition_of(device_key(APP, token), PARTITIONS)
        self._serial += 1
        requested = DeviceCommand(meta=meta(f"command {self._serial}", self.now_ms), appkey=APP, token=token, **command)
        key = device_key(APP, token)
        offset = self._append(NewRecord(DEVICE_COMMANDS.name, partition, key, requested.SerializeToString()))
        cause = Position(topic=DEVICE_COMMANDS.name, partition=partition, offset=offset)
        for index, fact in enumerate(self._rules.decide(Record(*cause_of(cause), b"", b""), requested)):
            seed = meta(f"fact {self._serial} {index}", self.now_ms, "registry")
            fact.message.meta.CopyFrom(Meta(event_id=seed.event_id, time_ms=self.now_ms, cause=cause))
            made = NewRecord(fact.topic.name, partition, fact.key, fact.message.SerializeToString())
            if fact.topic is DEVICES:
                self._rules.apply(Record(DEVICES.name, partition, -1, fact.key, b""), fact.message)
            else:
                self._repeated.append(made)
            self._append(made)
        if self._repeated and self._random.random() < 0.2:
            self._append(self._random.choice(self._repeated[-3:]))  # as of a former owner, or again after a kill

    def _append(self, made: NewRecord) -> int:
        offset = self._ends[made.topic, made.partition]
        self._ends[made.topic, made.partition] += 1
        self._made.append(made)
        return offset


def cause_of(cause: Position) -> tuple[str, int, int]:
    return cause.topic, cause.partition, cause.offset
