"""The attributes of every device, under which sessions and audiences are counted.

A device has those of its registration until the first AttributeChange in its partition of `sessions`, and those of the
latest one from then on: see AttributeHistory. Devices of releases without changes have those of the latest record.

Dense arrays of dictionary codes, indexed by device number: about 16 bytes a device.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from analytics.store.clickhouse import ClickHouse
from analytics.store.columns import ATTRIBUTES
from analytics.store.sql import sql
from protos.gateway.v1.sessions_pb2 import AttributeChange
from protos.registry.v1.devices_pb2 import Attributes

GREATEST_NUMBER = 2**27
"""Device numbers are dense, so a greater one is an error and would take too much memory."""


FEW_VALUES = 2**15
"""Number of values of an attribute up to which unused ones are kept. Beyond it each batch is followed by a search for
unused values; codes of two bytes leave room for as many new ones in that batch."""

_ROWS_PER_STRING = 16
"""Rows per string from which storing a whole dictionary is cheaper than finding the strings that occur."""


class DictionaryEncoder:
    """Gives strings codes; the empty string has code 0. A code that `free` has freed is given to another string."""

    def __init__(self) -> None:
        self._codes = {"": 0}
        self._strings = [""]
        self._free: list[int] = []
        self._limit = FEW_VALUES

    def code(self, value: str) -> int:
        code = self._codes.get(value)
        if code is None:
            code = self._codes[value] = self._new_code(value)
        return code

    def string(self, code: int) -> str:
        return self._strings[code]

    def __len__(self) -> int:
        """Return a number that all codes are below."""
        return len(self._strings)

    def strings(self) -> pa.Array:
        """Return every string, at the index of its code."""
        return pa.array(self._strings, pa.string())

    def strings_of(self, codes: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], pa.Array]:
        """Return these codes as indices, and the strings that they index: all strings, or only the strings that occur.

        Only the strings that occur are returned for few rows, so that a batch costs no more than its rows, and while
        there are free codes: all free codes stand for the empty string, and ClickHouse refuses a dictionary with
        repetitions.
        """
        if not self._free and _ROWS_PER_STRING * len(self) <= len(codes):
            return codes, self.strings()
        occurs = np.zeros(len(self), np.bool_)
        occurs[codes] = True
        occurring = np.flatnonzero(occurs)
        indices = np.zeros(len(self), np.uint32)
        indices[occurring] = np.arange(len(occurring))
        return indices[codes], pa.array([self._strings[code] for code in occurring.tolist()], pa.string())

    @property
    def is_full(self) -> bool:
        """Whether `free` is due: there are FEW_VALUES strings, and twice as many as the last `free` left."""
        return not self._free and len(self._strings) >= self._limit

    def free(self, is_used: npt.NDArray[np.bool_]) -> None:
        """Forget the strings whose codes `is_used` does not flag; the empty one stays."""
        self._free = (np.flatnonzero(~is_used[1:]) + 1).tolist()
        for code in self._free:
            del self._codes[self._strings[code]]
            self._strings[code] = ""
        self._limit = max(FEW_VALUES, 2 * len(self._codes))

    def _new_code(self, value: str) -> int:
        if self._free:
            code = self._free.pop()
            self._strings[code] = value
            return code
        self._strings.append(value)
        return len(self._strings) - 1


class CountedAttributes:
    """The latest attributes of every device, for one thread; `encoders` has one for each of ATTRIBUTES."""

    def __init__(self) -> None:
        self.encoders = [DictionaryEncoder() for _ in ATTRIBUTES]
        self._codes: dict[tuple[str, int], npt.NDArray[Any]] = {}

    def note(self, appkey: str, partition: int, number: int, attributes: Attributes) -> None:
        """Store one device's attributes. ValueError: the number is greater than any that the registry gives."""
        if number > GREATEST_NUMBER:
            raise ValueError(f"{number} cannot be a device number: device numbers are dense")
        self.put(appkey, partition, number, self.codes_for(attributes))

    def codes_for(self, attributes: Attributes) -> list[int]:
        """Return the codes of these attributes, new ones where they have none yet."""
        return [
            encoder.code(getattr(attributes, name)) for name, encoder in zip(ATTRIBUTES, self.encoders, strict=True)
        ]

    def put(self, appkey: str, partition: int, number: int, codes: Sequence[int]) -> None:
        """Store the codes of one device's attributes."""
        block = self._codes.get((appkey, partition))
        if block is None or number >= block.shape[1] or max(codes) >> 8 * block.itemsize:
            block = self._reserve(appkey, partition, number)
        block[:, number] = codes

    def note_all(self, appkey: str, partition: int, numbers: npt.NDArray[Any], values: Sequence[Any]) -> None:
        """Store many devices of one partition; `values` are dictionary arrays, one for each attribute."""
        if len(numbers):
            self._reserve(appkey, partition, int(numbers.max()))
            for row, (encoder, column) in enumerate(zip(self.encoders, values, strict=True)):
                codes = np.array([encoder.code(value) for value in column.dictionary.to_pylist()], np.uint32)
                block = self._widened(appkey, partition)
                block[row, numbers] = codes[column.indices.to_numpy()]

    def codes_of(self, appkey: str, partition: int, number: int) -> list[int]:
        """Return the codes of one device's attributes; 0 for each attribute of an unknown device."""
        block = self._codes.get((appkey, partition))
        if block is None or number >= block.shape[1]:
            return [0] * len(ATTRIBUTES)
        codes: list[int] = block[:, number].tolist()
        return codes

    def strings(self, codes: Sequence[int]) -> list[str]:
        """Return the attribute values that have these codes."""
        return [encoder.string(code) for encoder, code in zip(self.encoders, codes, strict=True)]

    def codes(self, appkey: str, partition: int, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a row of codes for each attribute, with a column for each number; 0 for unknown devices."""
        block = self._codes.get((appkey, partition))
        if block is None or not len(numbers):
            return np.zeros((len(ATTRIBUTES), len(numbers)), np.uint16)
        if numbers.max() < block.shape[1]:
            return block.take(numbers, axis=1)
        known = numbers < block.shape[1]
        return np.where(known, block[:, np.where(known, numbers, 0)], 0)

    def free_unused(self, mark_others: Callable[[int, npt.NDArray[np.bool_]], None]) -> None:
        """Forget values that no device has any more, once there may be many of an attribute.

        `mark_others` marks the codes that are used elsewhere: it gets the index of the attribute, and a flag by code.
        """
        for index, encoder in enumerate(self.encoders):
            if encoder.is_full:
                is_used = np.zeros(len(encoder), np.bool_)
                for block in self._codes.values():
                    is_used[block[index]] = True
                mark_others(index, is_used)
                encoder.free(is_used)

    def _reserve(self, appkey: str, partition: int, number: int) -> npt.NDArray[Any]:
        block = self._codes.get((appkey, partition))
        have = 0 if block is None else block.shape[1]
        if block is None or number >= have:
            wider = np.zeros((len(ATTRIBUTES), max(number + 1, have * 3 // 2, 64)), self._dtype())
            if block is not None:
                wider[:, :have] = block
            self._codes[appkey, partition] = wider
        return self._widened(appkey, partition)

    def _widened(self, appkey: str, partition: int) -> npt.NDArray[Any]:
        """Return the partition's array, converted to a type that holds every code."""
        block = self._codes[appkey, partition]
        if block.dtype != self._dtype():
            block = self._codes[appkey, partition] = block.astype(self._dtype())
        return block

    def _dtype(self) -> Any:
        return np.uint16 if max(map(len, self.encoders)) <= np.iinfo(np.uint16).max + 1 else np.uint32


_ROWS_AT_ONCE = 500_000
OF_REGISTRATIONS = {"registrations": "kept", "devices": "attributes_revision = 0"}
"""Tables with the attributes of devices before their first change, each with a condition on rows; the later counts."""


async def load(attributes: CountedAttributes, clickhouse: ClickHouse) -> None:
    """Load what every device in the store had before its first change, a bounded number of rows at a time."""
    for table, condition in OF_REGISTRATIONS.items():
        for groups in bounded(await clickhouse.rows(group_sizes(table, condition))):
            rows = await clickhouse.arrow(latest_rows(table, condition), {"groups": groups})
            await asyncio.to_thread(note_table, attributes, rows)


def group_sizes(table: str, condition: str) -> str:
    """Return the query for the number of rows of each app and partition."""
    return f"SELECT appkey, partition, count() FROM {table} WHERE {condition} GROUP BY 1, 2 ORDER BY 1, 2"  # noqa: S608


def latest_rows(table: str, condition: str) -> str:
    """Return the query for the attributes of each device of some `groups` by its latest row."""
    return sql(__package__, "latest_attributes", table=table, condition=condition, attributes=", ".join(ATTRIBUTES))


def bounded(counted: Iterable[Sequence[Any]]) -> Iterator[list[tuple[str, int]]]:
    """Group (app, partition, row count) into lists of (app, partition) with about `_ROWS_AT_ONCE` rows each."""
    groups: list[tuple[str, int]] = []
    rows = 0
    for appkey, partition, count in counted:
        groups.append((appkey, partition))
        rows += count
        if rows >= _ROWS_AT_ONCE:
            yield groups
            groups, rows = [], 0
    if groups:
        yield groups


def by_partition(table: pa.Table) -> Iterator[tuple[str, int, pa.Table]]:
    """Yield the rows of each app and partition; the table must be ordered by them."""
    appkeys = table.column("appkey").combine_chunks()
    partitions = table.column("partition").to_numpy()
    ends = np.flatnonzero((np.diff(appkeys.indices.to_numpy()) != 0) | (np.diff(partitions) != 0)) + 1
    for start, end in zip([0, *ends.tolist()], [*ends.tolist(), table.num_rows], strict=True):
        if start < end:
            yield appkeys[start].as_py(), int(partitions[start]), table.slice(start, end - start)


def note_table(attributes: CountedAttributes, table: pa.Table) -> None:
    """Store the attributes in rows that are ordered by app and partition."""
    for appkey, partition, rows in by_partition(table.combine_chunks()):
        values = [rows.column(name).chunk(0) for name in ATTRIBUTES]
        attributes.note_all(appkey, partition, rows.column("number").to_numpy(), values)


# Folds AttributeChanges into the attributes of devices, and tells what devices had before an offset.
#
# The order of one partition of `sessions` tells what its events count under. An audience is resolved elsewhere, so
# its start names the offset up to which changes count; analytics has often read further by then. So the former
# attributes of recent changes are kept in memory, and those of earlier ones are read from the store.

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

    def __init__(self, attributes: CountedAttributes) -> None:
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
        """Return whether the change's revision is above all earlier ones of the partition: no repetition."""
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
        """Return the codes of ascending device numbers after the changes before offset `until` - 1; 0: after all."""
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
        """Mark the codes that kept former attributes use; `attribute` is an index in ATTRIBUTES."""
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
