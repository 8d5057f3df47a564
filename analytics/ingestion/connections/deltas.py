"""Changes of the number of connections made by one batch of records, as rows of the analytics store."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analytics.ingestion.attributes import CountedAttributes, DictionaryEncoder
from analytics.ingestion.connections.spans import (
    OPEN,
    ConnectionDelta,
    ConnectionSpan,
    LatestConnections,
    NumberedDevice,
    minute_of,
)
from analytics.store.columns import ATTRIBUTES, TEXT, Column, Table
from protos.gateway.v1.sessions_pb2 import AttributeChange, SessionEvent, SessionEventKind

_DAY_MINUTES = 1440
_OPENED = SessionEventKind.SESSION_EVENT_KIND_OPENED
_CLOSED = SessionEventKind.SESSION_EVENT_KIND_CLOSED
Array = npt.NDArray[np.int64]


class DeltaArrays(NamedTuple):
    """Changes by one attribute, as arrays of equal length; all but `minutes` and `changes` are dictionary codes."""

    apps: Array
    gateways: Array
    minutes: Array
    values: Array
    changes: Array


class DeltaColumns(NamedTuple):
    """Changes by one attribute (`category`), with the encoders of their codes: the source of whole columns."""

    category: str
    deltas: DeltaArrays
    apps: DictionaryEncoder
    values: DictionaryEncoder
    gateways: DictionaryEncoder
    ingester: str

    def strings(self, encoder: DictionaryEncoder, codes: Array) -> pa.Array:
        indices, strings = encoder.strings_of(codes)
        return strings.take(pa.array(indices))

    def repeated(self, value: str) -> pa.Array:
        return pa.repeat(value, len(self.deltas.apps))

    def times(self, unit: str, type_: pa.DataType) -> pa.Array:
        return pa.array(self.deltas.minutes.astype("datetime64[m]").astype(unit)).cast(type_)


_MINUTE = pa.timestamp("s", "UTC")
_KEY: tuple[Column[DeltaColumns], ...] = (
    Column("appkey", TEXT, lambda rows: rows.strings(rows.apps, rows.deltas.apps)),
    Column("category", TEXT, lambda rows: rows.repeated(rows.category)),
    Column("info", TEXT, lambda rows: rows.strings(rows.values, rows.deltas.values)),
    Column("gateway", TEXT, lambda rows: rows.strings(rows.gateways, rows.deltas.gateways)),
)
_CHANGE: tuple[Column[DeltaColumns], ...] = (
    Column("ingester", TEXT, lambda rows: rows.repeated(rows.ingester)),
    Column("change", pa.int64(), lambda rows: pa.array(rows.deltas.changes)),
)
CONNECTION_CHANGES_TABLE = Table[DeltaColumns](
    "connection_changes", *_KEY, Column("minute", _MINUTE, lambda rows: rows.times("datetime64[s]", _MINUTE)), *_CHANGE
)
CONNECTION_DAYS_TABLE = Table[DeltaColumns](
    "connection_days",
    *_KEY,
    Column("day", pa.date32(), lambda rows: rows.times("datetime64[D]", pa.date32())),
    *_CHANGE,
)


class ConnectionDeltas:
    """The changes of one batch; the latest connections are kept from batch to batch."""

    def __init__(self, attributes: CountedAttributes, connections: LatestConnections, ingester: str) -> None:
        self._attributes = attributes
        self._connections = connections
        self._ingester = ingester
        self._appkeys = DictionaryEncoder()
        self._deltas: list[tuple[int, ConnectionDelta]] = []

    def add(self, partition: int, gateway: str, event: SessionEvent, values: list[int]) -> None:
        """Apply one session event, in the order of the log; `values` are the codes of the device's attributes."""
        if not event.connection or event.kind not in (_OPENED, _CLOSED):
            return
        device = NumberedDevice(event.appkey, partition, event.number)
        minute = minute_of(event.time_ms)
        if event.kind == _OPENED:
            code = self._connections.gateways.code(gateway)
            span = ConnectionSpan(event.connection, event.time_ms, OPEN, code, tuple(values))
            deltas = self._connections.opened(device, span)
        else:
            deltas = self._connections.closed(device, event.connection, minute)
        self._note(event.appkey, deltas)

    def attributes_changed(self, partition: int, change: AttributeChange, values: list[int]) -> None:
        """Apply a change of attributes, in the order of the log; `values` are the codes of the new ones."""
        device = NumberedDevice(change.appkey, partition, change.number)
        self._note(change.appkey, self._connections.attributes_changed(device, change.time_ms, tuple(values)))

    def _note(self, appkey: str, deltas: list[ConnectionDelta]) -> None:
        if deltas:
            app = self._appkeys.code(appkey)
            self._deltas += [(app, delta) for delta in deltas]

    def tables(self) -> dict[str, pa.Table]:
        """Return `connection_changes` and `connection_days`, each only if it has rows; zero sums are left out."""
        if not self._deltas:
            return {}
        by_minute = [_summed(deltas) for deltas in self._by_attribute()]
        by_day = [_summed(sums._replace(minutes=sums.minutes // _DAY_MINUTES * _DAY_MINUTES)) for sums in by_minute]
        pairs = ((CONNECTION_CHANGES_TABLE, by_minute), (CONNECTION_DAYS_TABLE, by_day))
        tables = {table.name: self._table(table, by_attribute) for table, by_attribute in pairs}
        return {name: rows for name, rows in tables.items() if rows.num_rows}

    def _by_attribute(self) -> list[DeltaArrays]:
        """Return all changes, once for each attribute."""
        apps = np.array([app for app, _ in self._deltas])
        gateways = np.array([delta.span.gateway for _, delta in self._deltas])
        minutes = np.array([delta.minute for _, delta in self._deltas])
        changes = np.array([delta.change for _, delta in self._deltas])
        values = np.array([delta.span.values for _, delta in self._deltas])
        return [DeltaArrays(apps, gateways, minutes, of_attribute, changes) for of_attribute in values.T]

    def _table(self, table: Table[DeltaColumns], by_attribute: Sequence[DeltaArrays]) -> pa.Table:
        apps, gateways = self._appkeys, self._connections.gateways
        return pa.concat_tables(
            table.from_arrays(DeltaColumns(category, deltas, apps, encoder, gateways, self._ingester))
            for category, encoder, deltas in zip(ATTRIBUTES, self._attributes.encoders, by_attribute, strict=True)
        )


def _summed(deltas: DeltaArrays) -> DeltaArrays:
    """Add up equal keys, sorted, and leave out zero sums."""
    if not len(deltas.changes):
        return deltas
    order = np.lexsort(deltas[:-1])
    apps, gateways, minutes, values, changes = (column[order] for column in deltas)
    keys = (apps, gateways, minutes, values)
    is_first = np.append(True, np.any([key[1:] != key[:-1] for key in keys], axis=0))
    sums = np.add.reduceat(changes, np.flatnonzero(is_first))
    summed = DeltaArrays(apps[is_first], gateways[is_first], minutes[is_first], values[is_first], sums)
    return DeltaArrays(*(column[sums != 0] for column in summed))
