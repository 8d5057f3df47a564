"""Generated test data of benchmarks: devices, pushes and outcomes of the last month, as the roles write them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from pyroaring import BitMap

from analytics.store.columns import ATTRIBUTES
from protos.delivery.v1.delivery_pb2 import AppOutcomes, DeliveryFact, OutcomeKind, Outcomes, PushFact, PushStarted
from protos.push.v1.push_pb2 import Audience, Everyone, Kind, PushCommand, SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID
from protos.runtime.v1.log_pb2 import Meta
from services.domain.topics import DELIVERIES, PUSH_COMMANDS, PUSHES
from services.log.port import NewRecord

APP = "1234567890"
PARTITIONS = 32
DAYS = 30
DAY_MS = 86_400_000
FIRST_ID = 1_000_000
FIRST_UNICAST = 1_000_000_000
OUTCOMES_A_RECORD = 30_000
_STEPS = {
    OutcomeKind.OUTCOME_KIND_SENT: 1.0,
    OutcomeKind.OUTCOME_KIND_RECEIVED: 0.9,
    OutcomeKind.OUTCOME_KIND_SHOWN: 0.1,
}
_UNICAST_SHARE = 0.05
_UNICASTS = 50_000

_DEVICES = """
INSERT INTO devices (appkey, partition, number, token, time, platform, registered, model, region, carrier, channel,
  sdk_version, brand, resolution, os_version, app_version, _event_id, _topic, _partition, _offset, _index)
SELECT {app:String}, number % 32, intDiv(number, 32), concat(hex(sipHash64(number)), hex(number)),
  fromUnixTimestamp64Milli({now_ms:Int64} - toInt64(number % 300) * 86400000) AS since,
  'android', since, 'm',
  concat('r', toString(number % 34)), ['cm', 'ct', 'cu'][number % 3 + 1], concat('c', toString(number % 20)), '2.1',
  concat('b', toString(number % 30)), '1080x1920', toString(number % 12), concat('1.', toString(number % 25)),
  reinterpretAsFixedString(toUInt128(number)), 'devices', number % 32, intDiv(number, 32), 0
FROM numbers({devices:UInt64})
"""
_REGISTRATIONS = """
INSERT INTO registrations (appkey, registered, partition, number, region, carrier, channel, sdk_version, brand,
  resolution, os_version, app_version, _topic, _partition, _offset, _index)
SELECT appkey, registered, partition, number, region, carrier, channel, sdk_version, brand,
  resolution, os_version, app_version, _topic, _partition, _offset, _index FROM devices
"""
_LOGINS = """
INSERT INTO sessions (appkey, partition, number, token, kind, time, connection, gateway, region, carrier, channel,
  sdk_version, brand, _topic, _partition, _offset, _index)
SELECT {app:String}, number % 32, intDiv(number, 32), '', 'logged_in',
  fromUnixTimestamp64Milli({now_ms:Int64} - toInt64({day:UInt8}) * 86400000 - toInt64(sipHash64(number) % 86400000)),
  0, '', concat('r', toString(number % 34)), ['cm', 'ct', 'cu'][number % 3 + 1], concat('c', toString(number % 20)),
  '2.1', concat('b', toString(number % 30)), 'sessions', number % 32, {day:UInt8} * 1000000000 + number, 0
FROM numbers({devices:UInt64}) WHERE sipHash64(number, {day:UInt8}) % 5 = 0
"""
LOGIN = """
INSERT INTO sessions (appkey, partition, number, token, kind, time, connection, gateway, brand, _topic, _partition,
  _offset, _index)
SELECT {app:String}, 1, {number:UInt32}, '', 'logged_in', fromUnixTimestamp64Milli({now_ms:Int64}), 0, '',
  concat('b', toString({number:UInt32} % 30)), 'sessions', 1, 900000000000 + {number:UInt32}, 0
"""
_CONNECTIONS = """
INSERT INTO sessions (appkey, partition, number, token, kind, time, connection, gateway, region, carrier, channel,
  sdk_version, brand, resolution, os_version, app_version, _topic, _partition, _offset, _index)
SELECT {app:String}, number % 32, intDiv(number, 32), '', event,
  fromUnixTimestamp64Milli(opened_ms + if(event = 'closed', 7200000, 0)), opened_ms * 65536 + number % 65536,
  concat('g', toString(number % 3)), concat('r', toString(number % 34)), ['cm', 'ct', 'cu'][number % 3 + 1],
  concat('c', toString(number % 20)), '2.1', concat('b', toString(number % 30)), '1080x1920', toString(number % 12),
  concat('1.', toString(number % 25)), 'sessions', number % 32,
  1000000000000 + {day:UInt8} * 1000000000 + number, event = 'closed'
FROM (
  SELECT number,
    {now_ms:Int64} - toInt64({day:UInt8}) * 86400000 - toInt64(sipHash64(number) % 86400000) AS opened_ms
  FROM numbers({devices:UInt64}) WHERE sipHash64(number, {day:UInt8}) % 10 = 0)
ARRAY JOIN ['opened', 'closed'] AS event
"""
_INGESTER = "INSERT INTO ingesters (instance, identity) VALUES ('history/1', 'history')"
_CHANGES = f"""
INSERT INTO connection_changes
SELECT appkey, category, info, gateway,
  toDateTime(toStartOfMinute(time + toIntervalMillisecond(59999)), 'UTC') AS minute,
  'history', sum(if(kind = 'opened', 1, -1))
FROM sessions
ARRAY JOIN {list(ATTRIBUTES)} AS category, [{", ".join(f"toString({name})" for name in ATTRIBUTES)}] AS info
WHERE kind IN ('opened', 'closed') GROUP BY appkey, category, info, gateway, minute
"""
_CHANGES_OF_DAYS = """
INSERT INTO connection_days
SELECT appkey, category, info, gateway, toDate32(minute) AS day, ingester, sum(change) FROM connection_changes
GROUP BY appkey, category, info, gateway, day, ingester
"""
_COUNTS = """
INSERT INTO connection_counts (appkey, minute, gateway, connections, _topic, _partition, _offset, _index)
SELECT {app:String},
  fromUnixTimestamp64Milli((intDiv({now_ms:Int64}, 60000) - toInt64(intDiv(number, 3))) * 60000),
  concat('g', toString(number % 3)), 1000 + number % 100, 'sessions', 0, number, 0
FROM numbers({minutes:UInt64} * 3)
"""


@dataclass(frozen=True, slots=True)
class History:
    """A history with so many devices and about so many outcomes: broadcasts to all, and a few unicast receipts."""

    devices: int
    deliveries: int
    now_ms: int

    @property
    def in_partition(self) -> int:
        return self.devices // PARTITIONS

    @property
    def broadcasts(self) -> int:
        of_each = self.devices * sum(_STEPS.values())
        return max(1, round(self.deliveries * (1 - _UNICAST_SHARE) / of_each))

    @property
    def unicasts(self) -> int:
        return round(self.deliveries * _UNICAST_SHARE)

    def sent_ms(self, broadcast: int) -> int:
        return self.now_ms - DAYS * DAY_MS + (broadcast + 1) * (DAYS - 1) * DAY_MS // self.broadcasts

    def statements(self) -> list[tuple[str, dict[str, object]]]:
        """Return SQL with parameters that inserts the unmeasured rows: devices, sessions, counts."""
        known: dict[str, object] = {"app": APP, "now_ms": self.now_ms, "devices": self.devices}
        return [
            (_DEVICES, known),
            (_REGISTRATIONS, {}),
            (_COUNTS, {**known, "minutes": DAYS * 1440}),
            *((_LOGINS, {**known, "day": day}) for day in range(DAYS)),
            *((_CONNECTIONS, {**known, "day": day}) for day in range(7)),
            *((statement, {}) for statement in (_INGESTER, _CHANGES, _CHANGES_OF_DAYS)),
        ]

    @property
    def parts(self) -> int:
        """Return the number of lists that `new_records` yields."""
        return self.broadcasts + -(-self.unicasts // _UNICASTS)

    def new_records(self) -> Iterator[list[NewRecord]]:
        """Yield the log's records, a broadcast at a time, then the unicasts."""
        for broadcast in range(self.broadcasts):
            yield [*self._started(broadcast), *self._outcomes(broadcast)]
        yield from self._unicasts()

    def _started(self, broadcast: int) -> Iterator[NewRecord]:
        msgid, at = FIRST_ID + broadcast, self.sent_ms(broadcast)
        yield command(msgid, 1, at, Kind.KIND_BROADCAST)
        audience = BitMap(range(self.in_partition))
        for partition in range(PARTITIONS):
            yield started(msgid, partition, audience, at)

    def _outcomes(self, broadcast: int) -> Iterator[NewRecord]:
        random = np.random.default_rng(broadcast)
        msgid, at = FIRST_ID + broadcast, self.sent_ms(broadcast)
        for kind, share in _STEPS.items():
            for partition in range(PARTITIONS):
                numbers = np.flatnonzero(random.random(self.in_partition) < share)
                for start in range(0, len(numbers), OUTCOMES_A_RECORD):
                    some = numbers[start : start + OUTCOMES_A_RECORD]
                    times = at + kind * 1000 + random.integers(0, 60_000, len(some))
                    yield outcomes(partition, np.full(len(some), msgid), some, kind, times)

    def _unicasts(self) -> Iterator[list[NewRecord]]:
        """Yield lists of 1000 receipts of the last two days; a record holds the receipts of some milliseconds."""
        random = np.random.default_rng(0)
        since_ms = self.now_ms - 2 * DAY_MS
        for start in range(0, self.unicasts, _UNICASTS):
            count = min(_UNICASTS, self.unicasts - start)
            msgids = FIRST_UNICAST + start + np.arange(count)
            times = since_ms + (start + np.arange(count)) * (2 * DAY_MS - 1_000_000) // self.unicasts
            partitions = random.integers(0, PARTITIONS, count)
            numbers = random.integers(0, self.in_partition, count)
            commands = [
                command(int(msgids[at]), min(1000, count - at), int(times[at]), Kind.KIND_UNICAST)
                for at in range(0, count, 1000)
            ]
            receipts = [
                outcomes(partition, msgids[some], numbers[some], OutcomeKind.OUTCOME_KIND_RECEIVED, times[some])
                for partition in range(PARTITIONS)
                for there in (np.flatnonzero(partitions == partition),)
                for some in np.split(there, range(100, len(there), 100))
                if len(some)
            ]
            yield [*commands, *receipts]


def command(msgid: int, id_count: int, time_ms: int, kind: Kind.ValueType) -> NewRecord:
    """Return the record of a push command."""
    push = SendPush(msgid=msgid, id_count=id_count, appkey=APP, platform=PLATFORM_ANDROID, kind=kind)
    push.audience.CopyFrom(Audience(everyone=Everyone()))
    return NewRecord(PUSH_COMMANDS.name, 0, b"", PushCommand(meta=_meta(time_ms), send=push).SerializeToString())


def started(msgid: int, partition: int, audience: BitMap, time_ms: int) -> NewRecord:
    """Return the record of the start of a push in one partition."""
    fact = PushFact(meta=_meta(time_ms), msgid=msgid, appkey=APP, partition=partition)
    devices, expires_ms = audience.serialize(), time_ms + DAY_MS
    fact.started.CopyFrom(PushStarted(audience=devices, count=len(audience), expires_ms=expires_ms))
    return NewRecord(PUSHES.name, partition, b"", fact.SerializeToString())


def outcomes(
    partition: int,
    msgids: "np.ndarray[tuple[int], np.dtype[np.int64]]",
    numbers: "np.ndarray[tuple[int], np.dtype[np.int64]]",
    kind: OutcomeKind.ValueType,
    times_ms: "np.ndarray[tuple[int], np.dtype[np.int64]]",
    appkey: str = APP,
) -> NewRecord:
    """Return the record of outcomes of one kind, as columns of equal length."""
    columns = AppOutcomes(
        appkey=appkey,
        msgids=msgids.astype("<u8").tobytes(),
        numbers=numbers.astype("<u4").tobytes(),
        kinds=np.full(len(msgids), kind, "u1").tobytes(),
        times_ms=times_ms.astype("<i8").tobytes(),
        reason_indexes=bytes(len(msgids)),
    )
    fact = DeliveryFact(meta=_meta(int(times_ms.max())), outcomes=Outcomes(apps=[columns]))
    return NewRecord(DELIVERIES.name, partition, b"", fact.SerializeToString())


def _meta(time_ms: int) -> Meta:
    return Meta(event_id=bytes(16), time_ms=time_ms, writer="bench")
