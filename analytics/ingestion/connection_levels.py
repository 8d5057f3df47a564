"""The changes of how many devices were connected that one batch of records makes, as rows of the analytics store."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analytics.ingestion.attributes import ATTRIBUTES, DeviceAttributes, DictionaryEncoder
from analytics.ingestion.connection_spans import OPEN, Change, Connection, Device, Spans, minute_of
from analytics.store.tables import CONNECTION_CHANGES, CONNECTION_DAYS
from protos.gateway.v1.sessions_pb2 import SessionEvent, SessionEventKind

_DAY_MINUTES = 1440
_OPENED = SessionEventKind.SESSION_EVENT_KIND_OPENED
_CLOSED = SessionEventKind.SESSION_EVENT_KIND_CLOSED
Column = npt.NDArray[np.int64]


class Sums(NamedTuple):
    """Changes as columns; all but `minutes` and `more` are codes."""

    apps: Column
    gateways: Column
    minutes: Column
    values: Column
    more: Column


class LevelColumns:
    """The changes of one batch; what is known of connections outlives it."""

    def __init__(self, attributes: DeviceAttributes, spans: Spans, reader: str) -> None:
        self._attributes = attributes
        self._spans = spans
        self._reader = reader
        self._appkeys = DictionaryEncoder()
        self._changes: list[tuple[int, Change]] = []

    def add(self, partition: int, gateway: str, event: SessionEvent, values: list[int]) -> None:
        """Fold one event, in the order of the log; `values` are codes of what the device is like."""
        if not event.connection or event.kind not in (_OPENED, _CLOSED):
            return
        device = Device(event.appkey, partition, event.number)
        minute = minute_of(event.time_ms)
        if event.kind == _OPENED:
            code = self._spans.gateways.code(gateway)
            made = self._spans.opened(device, Connection(event.connection, minute, OPEN, code, tuple(values)))
        else:
            made = self._spans.closed(device, event.connection, minute)
        app = self._appkeys.code(event.appkey)
        self._changes += [(app, change) for change in made]

    def tables(self) -> dict[str, pa.Table]:
        """`connection_changes` and `connection_days`, without what cancels itself out; each only with rows."""
        if not self._changes:
            return {}
        by_minute = [_summed(changes) for changes in self._by_attribute()]
        by_day = [_summed(sums._replace(minutes=sums.minutes // _DAY_MINUTES * _DAY_MINUTES)) for sums in by_minute]
        tables = {
            "connection_changes": self._table(by_minute, "datetime64[s]", CONNECTION_CHANGES),
            "connection_days": self._table(by_day, "datetime64[D]", CONNECTION_DAYS),
        }
        return {table: rows for table, rows in tables.items() if rows.num_rows}

    def _by_attribute(self) -> list[Sums]:
        """All changes, once for each attribute."""
        apps = np.array([app for app, _ in self._changes])
        gateways = np.array([change.connection.gateway for _, change in self._changes])
        minutes = np.array([change.minute for _, change in self._changes])
        more = np.array([change.more for _, change in self._changes])
        values = np.array([change.connection.values for _, change in self._changes])
        return [Sums(apps, gateways, minutes, of_attribute, more) for of_attribute in values.T]

    def _table(self, by_attribute: Sequence[Sums], unit: str, schema: pa.Schema) -> pa.Table:
        """The columns of the schema, with names for codes; times in a unit of numpy's."""
        parts = []
        for category, vocabulary, sums in zip(ATTRIBUTES, self._attributes.vocabularies, by_attribute, strict=True):
            columns = [
                self._appkeys.strings().take(pa.array(sums.apps)),
                pa.repeat(category, len(sums.apps)),
                vocabulary.strings().take(pa.array(sums.values)),
                self._spans.gateways.strings().take(pa.array(sums.gateways)),
                pa.array(sums.minutes.astype("datetime64[m]").astype(unit)),
                pa.repeat(self._reader, len(sums.apps)),
                pa.array(sums.more),
            ]
            parts.append(pa.Table.from_arrays(columns, names=schema.names).cast(schema))
        return pa.concat_tables(parts)


def _summed(changes: Sums) -> Sums:
    """Equal ones as one, in order, without what cancels itself out."""
    if not len(changes.more):
        return changes
    order = np.lexsort(changes[:-1])
    apps, gateways, minutes, values, more = (column[order] for column in changes)
    keys = (apps, gateways, minutes, values)
    is_first = np.append(True, np.any([key[1:] != key[:-1] for key in keys], axis=0))
    sums = np.add.reduceat(more, np.flatnonzero(is_first))
    summed = Sums(apps[is_first], gateways[is_first], minutes[is_first], values[is_first], sums)
    return Sums(*(column[sums != 0] for column in summed))
