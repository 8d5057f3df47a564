"""The devices that records of the log name by their numbers."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
from google.protobuf.message import DecodeError
from pyroaring import BitMap

from analytics.ingestion.registrations import Registrations
from protos.delivery.v1.delivery_pb2 import DeliveryFact, PushFact
from protos.gateway.v1.sessions_pb2 import SessionFact
from services.domain.topics import DELIVERIES, DEVICES, PUSHES, SESSIONS, decode
from services.runtime.log.port import Record

_NAMING = (SESSIONS.name, PUSHES.name, DELIVERIES.name)


def unknown_in(records: Sequence[Record], registrations: Registrations) -> set[int]:
    """The partitions in which devices are named that were not seen and that no record here registers."""
    coming = defaultdict[tuple[str, int], BitMap](BitMap)
    named: list[tuple[str, int, BitMap]] = []
    for record in records:
        with suppress(DecodeError, ValueError):
            if record.topic == DEVICES.name:
                device = decode(record).device
                coming[device.appkey, record.partition].add(device.number)
            elif record.topic in _NAMING:
                named += [(appkey, record.partition, numbers) for appkey, numbers in _named(record)]
    return {
        partition
        for appkey, partition, numbers in named
        if not registrations.knows(appkey, partition, numbers - coming[appkey, partition])
    }


def _named(record: Record) -> Iterator[tuple[str, BitMap]]:
    """Apps and numbers, all in the record's partition."""
    match decode(record):
        case SessionFact(batch=batch):
            numbers = defaultdict[str, list[int]](list)
            for event in batch.events:
                numbers[event.appkey].append(event.number)
            yield from ((appkey, BitMap(of_app)) for appkey, of_app in numbers.items())
        case PushFact(appkey=appkey, started=started) if started.audience:
            yield appkey, BitMap.deserialize(started.audience)
        case DeliveryFact(outcomes=outcomes):
            yield from ((app.appkey, BitMap(np.frombuffer(app.numbers, "<u4"))) for app in outcomes.apps)
