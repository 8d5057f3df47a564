"""Outcomes as columns: what happened to messages on devices, without a Python step for each of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analytics.audit.enum_names import enum_name
from analytics.ingestion.attributes import DeviceAttributes, DictionaryEncoder
from analytics.ingestion.broadcast_ids import Broadcasts
from analytics.store.tables import ACKS, TABLES, TIME
from protos.delivery.v1.delivery_pb2 import AppOutcomes, DeliveryFact, OutcomeKind
from services.domain.topics import DELIVERIES
from services.runtime.log.port import Record

_KINDS = pa.array([enum_name(OutcomeKind.DESCRIPTOR, number, "OUTCOME_KIND_") for number in range(256)], pa.string())
_TOPIC = pa.array([DELIVERIES.name], pa.string())


class Chunk(NamedTuple):
    """Outcomes of one app and one record: columns of equal length, and what all of them share."""

    appkey: str
    partition: int
    offset: int
    written_ms: int
    msgids: npt.NDArray[np.uint64]
    numbers: npt.NDArray[np.uint32]
    kinds: npt.NDArray[np.uint8]
    times_ms: npt.NDArray[np.int64]
    reasons: npt.NDArray[np.uint32]
    attributes: npt.NDArray[Any]
    indexes: npt.NDArray[np.uint32]


class OutcomeColumns:
    """The outcomes of one batch."""

    def __init__(self, attributes: DeviceAttributes, broadcasts: Broadcasts) -> None:
        self._attributes = attributes
        self._broadcasts = broadcasts
        self._reasons = DictionaryEncoder()
        self._chunks: list[Chunk] = []

    def add(self, record: Record, message: DeliveryFact) -> None:
        """ValueError or IndexError: some columns do not fit each other; nothing of the record is added."""
        match message.WhichOneof("fact"):
            case "outcomes":
                start = 0
                chunks = []
                for app in message.outcomes.apps:
                    chunks.append(self._chunk(record, message.meta.time_ms, app, start))
                    start += len(chunks[-1].msgids)
                self._chunks += chunks
            case None:
                pass
            case never:
                assert_never(never)

    def tables(self) -> dict[str, pa.Table]:
        """`deliveries`, and `acks` of what no broadcast is known for; each only with rows."""
        if not self._chunks:
            return {}
        receipts = [receipts for chunk in self._chunks if len((receipts := self._receipts(chunk)).msgids)]
        deliveries = {"deliveries": self._deliveries(self._chunks)}
        return {**deliveries, "acks": _acks(receipts)} if receipts else deliveries

    def _chunk(self, record: Record, written_ms: int, app: AppOutcomes, start: int) -> Chunk:
        msgids = np.frombuffer(app.msgids, "<u8")
        numbers = np.frombuffer(app.numbers, "<u4")
        kinds = np.frombuffer(app.kinds, "u1")
        times_ms = np.frombuffer(app.times_ms, "<i8")
        indexes = np.frombuffer(app.reason_indexes, "u1")
        if len({len(column) for column in (msgids, numbers, kinds, times_ms, indexes)}) != 1:
            raise ValueError("outcomes have columns of different lengths")
        reasons = np.array([0, *(self._reasons.code(reason) for reason in app.reasons)], np.uint32)[indexes]
        attributes = self._attributes.codes(app.appkey, record.partition, numbers)
        order = np.arange(start, start + len(msgids), dtype=np.uint32)
        return Chunk(
            *(app.appkey, record.partition, record.offset, written_ms, msgids, numbers, kinds, times_ms, reasons),
            *(attributes, order),
        )

    def _receipts(self, chunk: Chunk) -> Chunk:
        """What may be receipts of unicast messages. No clock of a gateway puts one behind the moment of its record."""
        received = np.flatnonzero(chunk.kinds == OutcomeKind.OUTCOME_KIND_RECEIVED)
        chosen = received[~self._broadcasts.among(chunk.msgids[received])]
        return chunk._replace(
            msgids=chunk.msgids[chosen],
            numbers=chunk.numbers[chosen],
            times_ms=np.minimum(chunk.times_ms[chosen], chunk.written_ms),
            indexes=chunk.indexes[chosen],
        )

    def _deliveries(self, chunks: Sequence[Chunk]) -> pa.Table:
        sizes = _sizes(chunks)
        partitions = np.repeat(np.array([chunk.partition for chunk in chunks], np.uint16), sizes)
        attributes = np.concatenate([chunk.attributes for chunk in chunks], axis=1)
        columns = [
            _appkeys(chunks),
            pa.array(np.concatenate([chunk.msgids for chunk in chunks])),
            pa.array(partitions),
            pa.array(np.concatenate([chunk.numbers for chunk in chunks])),
            _coded(np.concatenate([chunk.kinds for chunk in chunks]), _KINDS),
            pa.array(np.concatenate([chunk.times_ms for chunk in chunks])).cast(TIME),
            _coded(np.concatenate([chunk.reasons for chunk in chunks]), self._reasons.strings()),
            *(
                _coded(codes, vocabulary.strings())
                for codes, vocabulary in zip(attributes, self._attributes.vocabularies, strict=True)
            ),
            _coded(np.zeros(len(partitions), np.uint8), _TOPIC),
            pa.array(partitions),
            pa.array(np.repeat(np.array([chunk.offset for chunk in chunks], np.uint64), sizes)),
            pa.array(np.concatenate([chunk.indexes for chunk in chunks])),
        ]
        return pa.Table.from_arrays(columns, schema=TABLES["deliveries"])


def _acks(chunks: Sequence[Chunk]) -> pa.Table:
    sizes = _sizes(chunks)
    columns = [
        _appkeys(chunks),
        pa.array(np.repeat(np.array([chunk.partition for chunk in chunks], np.uint16), sizes)),
        pa.array(np.concatenate([chunk.numbers for chunk in chunks])),
        pa.array(np.concatenate([chunk.msgids for chunk in chunks])),
        pa.array(np.concatenate([chunk.times_ms for chunk in chunks])).cast(TIME),
        pa.array(np.repeat(np.array([chunk.offset for chunk in chunks], np.uint64), sizes)),
        pa.array(np.concatenate([chunk.indexes for chunk in chunks])),
    ]
    return pa.Table.from_arrays(columns, schema=ACKS)


def _sizes(chunks: Sequence[Chunk]) -> npt.NDArray[np.int64]:
    return np.array([len(chunk.msgids) for chunk in chunks], np.int64)


def _appkeys(chunks: Sequence[Chunk]) -> pa.Array:
    apps = DictionaryEncoder()
    codes = np.array([apps.code(chunk.appkey) for chunk in chunks], np.uint32)
    return _coded(np.repeat(codes, _sizes(chunks)), apps.strings())


def _coded(codes: npt.NDArray[Any], strings: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), strings)
