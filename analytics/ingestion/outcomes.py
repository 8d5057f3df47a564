"""Turns the outcomes of a batch into columns with numpy, without a Python step for each outcome."""

from collections.abc import Sequence
from typing import Any, NamedTuple, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analytics.ingestion.attributes import CountedAttributes, DictionaryEncoder
from analytics.ingestion.known_ids import BroadcastIds
from analytics.store.columns import ATTRIBUTES, BOOL, CODED, TIME, UINT16, UINT32, UINT64, Column, Table, enum_name
from protos.delivery.v1.delivery_pb2 import AppOutcomes, DeliveryFact, OutcomeKind
from protos.registry.v1.apps_pb2 import Channel
from services.domain.addresses import channel_name
from services.log.port import Record

_KINDS = pa.array([enum_name(OutcomeKind.DESCRIPTOR, number, "OUTCOME_KIND_") for number in range(256)], pa.string())
_VIA = pa.array(["", *(channel_name(number) for number in range(1, 256))], pa.string())


class OutcomeBlock(NamedTuple):
    """Outcomes of one app in one record: arrays of equal length, and the values that all rows share."""

    appkey: str
    partition: int
    offset: int
    written_ms: int
    msgids: npt.NDArray[np.uint64]
    numbers: npt.NDArray[np.uint32]
    kinds: npt.NDArray[np.uint8]
    times_ms: npt.NDArray[np.int64]
    reasons: npt.NDArray[np.uint32]
    channels: npt.NDArray[np.uint8]
    simulated: npt.NDArray[np.bool_]
    attributes: npt.NDArray[Any]
    indexes: npt.NDArray[np.uint32]


class OutcomeArrays(NamedTuple):
    """Blocks as the source of whole columns; `encoders` are those of the attributes."""

    blocks: Sequence[OutcomeBlock]
    reasons: DictionaryEncoder
    encoders: Sequence[DictionaryEncoder]

    def joined(self, name: str) -> npt.NDArray[Any]:
        """Return one array of every block, one after the other."""
        return np.concatenate([getattr(block, name) for block in self.blocks])

    def repeated(self, name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return one value of every block, repeated for each of its rows."""
        sizes = [len(block.msgids) for block in self.blocks]
        return np.repeat(np.array([getattr(block, name) for block in self.blocks], dtype), sizes)

    def appkeys(self) -> pa.Array:
        apps = DictionaryEncoder()
        codes = np.array([apps.code(block.appkey) for block in self.blocks], np.uint32)
        return _coded(np.repeat(codes, [len(block.msgids) for block in self.blocks]), apps.strings())

    def attribute(self, index: int) -> pa.Array:
        codes = np.concatenate([block.attributes[index] for block in self.blocks])
        return _coded(*self.encoders[index].strings_of(codes))


def _coded(codes: npt.NDArray[Any], strings: pa.Array) -> pa.Array:
    """Return a dictionary array with codes of as few bytes as the number of strings needs."""
    code = np.min_scalar_type(len(strings) - 1)
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(code, copy=False)), strings)


def _attribute(index: int) -> Column[OutcomeArrays]:
    return Column(ATTRIBUTES[index], CODED, lambda rows: rows.attribute(index))


DELIVERIES_TABLE = Table[OutcomeArrays](
    "deliveries",
    Column("appkey", CODED, lambda rows: rows.appkeys()),
    Column("msgid", UINT64, lambda rows: pa.array(rows.joined("msgids"))),
    Column("partition", UINT16, lambda rows: pa.array(rows.repeated("partition", np.uint16))),
    Column("number", UINT32, lambda rows: pa.array(rows.joined("numbers"))),
    Column("kind", CODED, lambda rows: _coded(rows.joined("kinds"), _KINDS)),
    Column("time", TIME, lambda rows: pa.array(rows.joined("times_ms")).cast(TIME)),
    Column("reason", CODED, lambda rows: _coded(rows.joined("reasons"), rows.reasons.strings())),
    Column("via", CODED, lambda rows: _coded(rows.joined("channels"), _VIA)),
    Column("simulated", BOOL, lambda rows: pa.array(rows.joined("simulated"))),
    *(_attribute(index) for index in range(len(ATTRIBUTES))),
    Column("_offset", UINT64, lambda rows: pa.array(rows.repeated("offset", np.uint64))),
    Column("_index", UINT32, lambda rows: pa.array(rows.joined("indexes"))),
)
ACKS_TABLE = Table[OutcomeArrays](
    "acks",
    Column("appkey", CODED, lambda rows: rows.appkeys()),
    Column("partition", UINT16, lambda rows: pa.array(rows.repeated("partition", np.uint16))),
    Column("number", UINT32, lambda rows: pa.array(rows.joined("numbers"))),
    Column("msgid", UINT64, lambda rows: pa.array(rows.joined("msgids"))),
    Column("time", TIME, lambda rows: pa.array(rows.joined("times_ms")).cast(TIME)),
    Column("_offset", UINT64, lambda rows: pa.array(rows.repeated("offset", np.uint64))),
    Column("_index", UINT32, lambda rows: pa.array(rows.joined("indexes"))),
)
"""Receipts of unicast messages, which `deliveries` has too, in the order of the log."""


class OutcomeBatch:
    """The outcomes of one batch of records."""

    def __init__(self, attributes: CountedAttributes, broadcasts: BroadcastIds, only: str = "") -> None:
        """`only`: an appkey; outcomes of other apps are left out then."""
        self._attributes = attributes
        self._broadcasts = broadcasts
        self._only = only
        self._reasons = DictionaryEncoder()
        self._blocks: list[OutcomeBlock] = []

    def add(self, record: Record, message: DeliveryFact) -> None:
        """Add a record's outcomes. ValueError or IndexError: its columns do not match; none of the record is added."""
        match message.WhichOneof("fact"):
            case "outcomes":
                start = 0
                blocks = []
                for app in message.outcomes.apps:
                    blocks.append(self._block(record, message.meta.time_ms, app, start))
                    start += len(blocks[-1].msgids)
                self._blocks += [block for block in blocks if self._only in ("", block.appkey)]
            case None:
                pass
            case never:
                assert_never(never)

    @property
    def row_count(self) -> int:
        return sum(len(block.msgids) for block in self._blocks)

    def tables(self) -> dict[str, pa.Table]:
        """Return `deliveries`, and `acks` of messages that no broadcast is known for; each only if it has rows."""
        if not self._blocks:
            return {}
        receipts = [receipts for block in self._blocks if len((receipts := self._receipts(block)).msgids)]
        deliveries = {"deliveries": DELIVERIES_TABLE.from_arrays(self._columns(self._blocks))}
        return {**deliveries, "acks": ACKS_TABLE.from_arrays(self._columns(receipts))} if receipts else deliveries

    def _columns(self, blocks: Sequence[OutcomeBlock]) -> OutcomeArrays:
        return OutcomeArrays(blocks, self._reasons, self._attributes.encoders)

    def _block(self, record: Record, written_ms: int, app: AppOutcomes, start: int) -> OutcomeBlock:
        msgids = np.frombuffer(app.msgids, "<u8")
        numbers = np.frombuffer(app.numbers, "<u4")
        kinds = np.frombuffer(app.kinds, "u1")
        times_ms = np.frombuffer(app.times_ms, "<i8")
        reason_indexes = np.frombuffer(app.reason_indexes, "u1")
        channels = np.frombuffer(app.channels, "u1") if app.channels else np.zeros(len(msgids), "u1")
        if len({len(column) for column in (msgids, numbers, kinds, times_ms, reason_indexes, channels)}) != 1:
            raise ValueError("outcomes have columns of different lengths")
        return OutcomeBlock(
            appkey=app.appkey,
            partition=record.partition,
            offset=record.offset,
            written_ms=written_ms,
            msgids=msgids,
            numbers=numbers,
            kinds=kinds,
            times_ms=times_ms,
            reasons=np.array([0, *(self._reasons.code(reason) for reason in app.reasons)], np.uint32)[reason_indexes],
            channels=channels,
            simulated=_simulated(channels, kinds, app.simulated),
            attributes=self._attributes.codes(app.appkey, record.partition, numbers),
            indexes=np.arange(start, start + len(msgids), dtype=np.uint32),
        )

    def _receipts(self, block: OutcomeBlock) -> OutcomeBlock:
        """Return the receipts of messages that are no known broadcast, none later than its record was written.

        A gateway's clock may be ahead; without the bound such a receipt would stay invisible too long.
        """
        received = np.flatnonzero(block.kinds == OutcomeKind.OUTCOME_KIND_RECEIVED)
        chosen = received[~self._broadcasts.includes(block.msgids[received])]
        return block._replace(
            msgids=block.msgids[chosen],
            numbers=block.numbers[chosen],
            times_ms=np.minimum(block.times_ms[chosen], block.written_ms),
            indexes=block.indexes[chosen],
        )


_ANSWERED = [
    OutcomeKind.OUTCOME_KIND_SENT,
    OutcomeKind.OUTCOME_KIND_FAILED,
    OutcomeKind.OUTCOME_KIND_HANDED_OVER,
    OutcomeKind.OUTCOME_KIND_RETURNED,
    OutcomeKind.OUTCOME_KIND_CLAIMED,
    OutcomeKind.OUTCOME_KIND_EXPIRED,
]
"""The outcomes that the service of a channel decides, or is asked for. EXPIRED is recorded after an answer alone."""


def _simulated(
    channels: npt.NDArray[np.uint8], kinds: npt.NDArray[np.uint8], simulated: Sequence[int]
) -> npt.NDArray[np.bool_]:
    """Return for each outcome whether a simulator answered; outcomes without a channel are then Apple's."""
    if not simulated:
        return np.zeros(len(channels), np.bool_)
    services = np.where(channels == 0, Channel.CHANNEL_APNS, channels)
    return np.isin(services, simulated) & np.isin(kinds, _ANSWERED)
