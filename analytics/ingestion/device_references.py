"""Finds references to devices in records of the log: the device numbers in sessions, audiences and outcomes."""

import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
from google.protobuf.message import DecodeError
from pyroaring import BitMap

from analytics.ingestion.known_ids import KnownDevices
from protos.delivery.v1.delivery_pb2 import DeliveryFact, PushFact
from protos.gateway.v1.sessions_pb2 import SessionFact
from services.domain.topics import DELIVERIES, DEVICES, PUSHES, SESSIONS, decode
from services.log.port import Partition, Record

_REFERRING = (SESSIONS.name, PUSHES.name, DELIVERIES.name)


def unknown_device_partitions(records: Sequence[Record], known: KnownDevices) -> set[int]:
    """Return the partitions with references to devices that are not known and that no record here registers."""
    registered = defaultdict[tuple[str, int], BitMap](BitMap)
    references: list[tuple[str, int, BitMap]] = []
    for record in records:
        with suppress(DecodeError, ValueError):
            if record.topic == DEVICES.name:
                device = decode(record).device
                registered[device.appkey, record.partition].add(device.number)
            elif record.topic in _REFERRING:
                references += [(appkey, record.partition, numbers) for appkey, numbers in _device_references(record)]
    return {
        partition
        for appkey, partition, numbers in references
        if not known.includes(appkey, partition, numbers - registered[appkey, partition])
    }


def session_ends(records: Sequence[Record]) -> dict[Partition, int]:
    """Return, by partition, the offset of `sessions` before which all must be read before the records are translated.

    Partitions in which the records themselves reach that offset are left out.
    """
    ends: dict[Partition, int] = {}
    for partition, until in _starts(records):
        of_sessions = Partition(SESSIONS.name, partition)
        ends[of_sessions] = max(until, ends.get(of_sessions, 0))
    for record in records:
        of_record = Partition(record.topic, record.partition)
        if record.offset + 1 >= ends.get(of_record, record.offset + 2):
            del ends[of_record]
    return ends


def earliest_starts(records: Sequence[Record]) -> dict[int, int]:
    """Return, for each partition with starts of pushes, the earliest offset of `sessions` that they count to."""
    earliest: dict[int, int] = {}
    for partition, until in _starts(records):
        earliest[partition] = min(until, earliest.get(partition, until))
    return earliest


def _starts(records: Sequence[Record]) -> Iterator[tuple[int, int]]:
    """Yield the partition of each start that names it, and the offset of `sessions` before which changes count."""
    for record in records:
        if record.topic == PUSHES.name:
            with suppress(DecodeError):
                if until := decode(record).started.attributes_until:
                    yield record.partition, until - 1


def _device_references(record: Record) -> Iterator[tuple[str, BitMap]]:
    """Yield apps and device numbers, all in the record's partition."""
    match decode(record):
        case SessionFact(batch=batch) as fact:
            numbers = defaultdict[str, list[int]](list)
            for event in batch.events:
                numbers[event.appkey].append(event.number)
            yield from ((appkey, BitMap(of_app)) for appkey, of_app in numbers.items())
            if fact.HasField("attributes_changed"):
                yield fact.attributes_changed.appkey, BitMap([fact.attributes_changed.number])
        case PushFact(appkey=appkey, started=started) if started.audience:
            yield appkey, BitMap.deserialize(started.audience)
        case DeliveryFact(outcomes=outcomes):
            yield from ((app.appkey, _bitmap(app.numbers)) for app in outcomes.apps)


def _bitmap(numbers: bytes) -> BitMap:
    """Return the bitmap of numbers of 32 bits, little-endian; from an `array` that takes a tenth of the time."""
    return BitMap(array.array("I", np.frombuffer(numbers, "<u4").tobytes()))
