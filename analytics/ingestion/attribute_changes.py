"""Folds AttributeChanges into the attributes of devices, and tells what devices had before an offset.

The order of one partition of `sessions` tells what its events count under. An audience is resolved elsewhere, so its
start names the offset up to which changes count; analytics has often read further by then. So the former attributes of
recent changes are kept in memory, and those of earlier ones are read from the store.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from analytics.ingestion.attributes import DeviceAttributes, bounded, by_partition, group_sizes, latest_rows, note_table
from analytics.store.clickhouse import ClickHouse
from analytics.store.columns import ATTRIBUTES
from protos.gateway.v1.sessions_pb2 import AttributeChange
from protos.registry.v1.devices_pb2 import Attributes

READ = "_offset < transform(partition, {partitions:Array(UInt16)}, {ends:Array(UInt64)}, toUInt64(0))"
REVISIONS = f"SELECT partition, max(revision) FROM attribute_changes WHERE {READ} GROUP BY partition"  # noqa: S608

_KEPT = 50_000
"""Changes of a partition whose former attributes stay in memory: more than one batch has."""


class FormerAttributes(NamedTuple):
    """The codes of a device's attributes until the change at an offset."""

    offset: int
    appkey: str
    number: int
    codes: Sequence[int]


class AttributeHistory:
    """The attributes of devices now and before recent changes, for one thread."""

    def __init__(self, attributes: DeviceAttributes) -> None:
        self.attributes = attributes
        self._changed: dict[tuple[str, int], BitMap] = {}
        self._revisions: dict[int, int] = {}
        self._former: dict[int, list[FormerAttributes]] = {}
        self._known_from: dict[int, int] = {}

    def registered(self, appkey: str, partition: int, number: int, attributes: Attributes) -> None:
        """Store what a record of `devices` tells, unless a change of the device was read. ValueError: see `note`."""
        if number not in self._changed.get((appkey, partition), ()):
            self.attributes.note(appkey, partition, number, attributes)

    def is_new(self, partition: int, change: AttributeChange) -> bool:
        """Return whether the change is above every earlier one in the partition, and no repetition."""
        return change.revision > self._revisions.get(partition, 0)

    def change(self, partition: int, offset: int, change: AttributeChange) -> FormerAttributes:
        """Apply a new change; return what the device had before. ValueError: it is no device's number."""
        former = self.attributes.codes_of(change.appkey, partition, change.number)
        self.attributes.note(change.appkey, partition, change.number, change.attributes)
        self._revisions[partition] = change.revision
        self._changed.setdefault((change.appkey, partition), BitMap()).add(change.number)
        kept = self._former.setdefault(partition, [])
        kept.append(FormerAttributes(offset, change.appkey, change.number, former))
        if len(kept) > 2 * _KEPT:
            self._known_from[partition] = kept[-_KEPT].offset
            del kept[:-_KEPT]
        return kept[-1]

    def codes(self, appkey: str, partition: int, numbers: npt.NDArray[Any], until: int) -> npt.NDArray[Any]:
        """Return the codes of ascending device numbers, by the changes before the offset `until` - 1; 0: by all."""
        codes = self.attributes.codes(appkey, partition, numbers)
        for former in reversed(self._former.get(partition, ())) if until else ():
            if former.offset < until - 1:
                break
            place = int(np.searchsorted(numbers, former.number))
            if former.appkey == appkey and place < len(numbers) and numbers[place] == former.number:
                codes = codes.astype(np.uint32, copy=False)
                codes[:, place] = former.codes
        return codes

    def known_from(self, partition: int) -> int:
        """Return the offset from which on the changes of the partition are in memory."""
        return self._known_from.get(partition, 0)

    def mark_values(self, attribute: int, is_used: npt.NDArray[np.bool_]) -> None:
        """Mark the codes of an attribute's values, by its index in ATTRIBUTES, that are kept."""
        for kept in self._former.values():
            is_used[[former.codes[attribute] for former in kept]] = True

    async def load(self, clickhouse: ClickHouse, ends: Mapping[int, int]) -> None:
        """Load the latest change of each device from the records before these offsets of each partition."""
        self._known_from = dict(ends)
        parameters = {"partitions": list(ends), "ends": list(ends.values())}
        self._revisions = dict[int, int](await clickhouse.rows(REVISIONS, parameters))  # type: ignore[arg-type]
        table = "attribute_changes"
        for groups in bounded(await clickhouse.rows(group_sizes(table, READ), parameters)):
            query = latest_rows(table, READ)
            rows = (await clickhouse.arrow(query, {**parameters, "groups": groups})).combine_chunks()
            await asyncio.to_thread(note_table, self.attributes, rows)
            for appkey, partition, of_partition in by_partition(rows):
                self._changed[appkey, partition] = BitMap(of_partition.column("number").to_numpy())

    async def load_former(self, clickhouse: ClickHouse, partition: int, since: int) -> list[Sequence[Any]]:
        """Return the rows of changes from an offset on that are no longer in memory, for `add_former`."""
        parameters = {"partition": partition, "since": since, "until": self.known_from(partition)}
        return list(await clickhouse.rows(FORMER, parameters))

    def add_former(self, partition: int, since: int, rows: Sequence[Sequence[Any]]) -> None:
        """Keep the former attributes of these changes until later ones displace them."""
        earlier = [
            FormerAttributes(offset, appkey, number, self.attributes.codes_for(attributes_of(values)))
            for offset, appkey, number, values in rows
        ]
        self._former[partition] = earlier + self._former.get(partition, [])
        self._known_from[partition] = since


def attributes_of(values: Sequence[str]) -> Attributes:
    """Return the attributes with these values, in order of ATTRIBUTES."""
    return Attributes(**dict(zip(ATTRIBUTES, values, strict=True)))


FORMER = """
SELECT _offset, appkey, number, former FROM attribute_changes FINAL
WHERE partition = {partition:UInt16} AND _offset >= {since:UInt64} AND _offset < {until:UInt64} ORDER BY _offset
"""
