"""What each device is like now, by number, so that an outcome can be stored with what its device was like then.

Dense arrays of codes: about 16 bytes a device.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analytics.store.clickhouse import ClickHouse
from protos.registry.v1.devices_pb2 import Attributes

ATTRIBUTES = ("region", "carrier", "channel", "sdk_version", "brand", "resolution", "os_version", "app_version")

GREATEST_NUMBER = 2**27


class DictionaryEncoder:
    """Codes of strings, in order of appearance; the empty string is 0."""

    def __init__(self) -> None:
        self._codes = {"": 0}
        self._strings = [""]

    def code(self, value: str) -> int:
        code = self._codes.get(value)
        if code is None:
            code = self._codes[value] = len(self._strings)
            self._strings.append(value)
        return code

    def string(self, code: int) -> str:
        return self._strings[code]

    def __len__(self) -> int:
        return len(self._codes)

    def strings(self) -> pa.Array:
        """Every string, at the index that is its code."""
        return pa.array(self._strings, pa.string())


class DeviceAttributes:
    """The latest attributes of every device, for one thread."""

    def __init__(self) -> None:
        self.vocabularies = [DictionaryEncoder() for _ in ATTRIBUTES]
        self._codes: dict[tuple[str, int], npt.NDArray[Any]] = {}

    def note(self, appkey: str, partition: int, number: int, attributes: Attributes) -> None:
        """Remember one device's attributes. ValueError: no registry gives such a number."""
        if number > GREATEST_NUMBER:
            raise ValueError(f"{number} cannot be a device's number: they are dense")
        codes = [
            vocabulary.code(getattr(attributes, name))
            for name, vocabulary in zip(ATTRIBUTES, self.vocabularies, strict=True)
        ]
        self._room(appkey, partition, number)[:, number] = codes

    def note_all(self, appkey: str, partition: int, numbers: npt.NDArray[Any], values: Sequence[Any]) -> None:
        """Remember many devices of one partition; `values` are dictionary arrays, one for each attribute."""
        if len(numbers):
            block = self._room(appkey, partition, int(numbers.max()))
            for row, (vocabulary, column) in enumerate(zip(self.vocabularies, values, strict=True)):
                codes = np.array([vocabulary.code(value) for value in column.dictionary.to_pylist()], np.uint32)
                block = self._widened(appkey, partition)
                block[row, numbers] = codes[column.indices.to_numpy()]

    def codes_of(self, appkey: str, partition: int, number: int) -> list[int]:
        """One device's attributes; 0 where nothing is known."""
        block = self._codes.get((appkey, partition))
        if block is None or number >= block.shape[1]:
            return [0] * len(ATTRIBUTES)
        codes: list[int] = block[:, number].tolist()
        return codes

    def strings(self, codes: Sequence[int]) -> list[str]:
        """The attributes that have these codes."""
        return [vocabulary.string(code) for vocabulary, code in zip(self.vocabularies, codes, strict=True)]

    def codes(self, appkey: str, partition: int, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """One row for each attribute, one column for each number; 0 where nothing is known."""
        block = self._codes.get((appkey, partition))
        if block is None or not len(numbers):
            return np.zeros((len(ATTRIBUTES), len(numbers)), np.uint16)
        known = numbers < block.shape[1]
        return np.where(known, block[:, np.where(known, numbers, 0)], 0)

    def _room(self, appkey: str, partition: int, number: int) -> npt.NDArray[Any]:
        block = self._codes.get((appkey, partition))
        have = 0 if block is None else block.shape[1]
        if block is None or number >= have:
            wider = np.zeros((len(ATTRIBUTES), max(number + 1, have * 3 // 2, 64)), self._dtype())
            if block is not None:
                wider[:, :have] = block
            self._codes[appkey, partition] = wider
        return self._widened(appkey, partition)

    def _widened(self, appkey: str, partition: int) -> npt.NDArray[Any]:
        """The block, in a type that holds every code."""
        block = self._codes[appkey, partition]
        if block.dtype != self._dtype():
            block = self._codes[appkey, partition] = block.astype(self._dtype())
        return block

    def _dtype(self) -> Any:
        return np.uint16 if max(map(len, self.vocabularies)) <= np.iinfo(np.uint16).max + 1 else np.uint32


_GROUPS = "SELECT appkey, partition, count() FROM devices GROUP BY appkey, partition ORDER BY appkey, partition"
_LATEST = f"""
SELECT appkey, partition, number, {", ".join(ATTRIBUTES)}
FROM (SELECT * FROM devices FINAL WHERE (appkey, partition) IN {{groups:Array(Tuple(String, UInt16))}})
ORDER BY appkey, partition, number, _offset DESC LIMIT 1 BY appkey, partition, number
"""  # noqa: S608
_ROWS_AT_ONCE = 500_000


async def load(attributes: DeviceAttributes, clickhouse: ClickHouse) -> None:
    """Remember every device that the store knows, a bounded number at a time."""
    for groups in bounded(await clickhouse.rows(_GROUPS)):
        table = await clickhouse.arrow(_LATEST, {"groups": groups})
        await asyncio.to_thread(_note_table, attributes, table)


def bounded(counted: Iterable[Sequence[Any]]) -> Iterator[list[tuple[str, int]]]:
    """(app, partition, rows) in turn, as lists of apps and partitions that are not too much at once."""
    groups: list[tuple[str, int]] = []
    waiting = 0
    for appkey, partition, count in counted:
        groups.append((appkey, partition))
        waiting += count
        if waiting >= _ROWS_AT_ONCE:
            yield groups
            groups, waiting = [], 0
    if groups:
        yield groups


def by_partition(table: pa.Table) -> Iterator[tuple[str, int, pa.Table]]:
    """The rows of each app and partition; `table` is ordered by them."""
    appkeys = table.column("appkey").combine_chunks()
    partitions = table.column("partition").to_numpy()
    ends = np.flatnonzero((np.diff(appkeys.indices.to_numpy()) != 0) | (np.diff(partitions) != 0)) + 1
    for start, end in zip([0, *ends.tolist()], [*ends.tolist(), table.num_rows], strict=True):
        if start < end:
            yield appkeys[start].as_py(), int(partitions[start]), table.slice(start, end - start)


def _note_table(attributes: DeviceAttributes, table: pa.Table) -> None:
    for appkey, partition, rows in by_partition(table.combine_chunks()):
        values = [rows.column(name).chunk(0) for name in ATTRIBUTES]
        attributes.note_all(appkey, partition, rows.column("number").to_numpy(), values)
