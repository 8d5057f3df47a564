"""Declarations of tables that are filled from the log, a line for each column, and the names of enum values."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

import pyarrow as pa
from google.protobuf.descriptor import EnumDescriptor

ATTRIBUTES = ("region", "carrier", "channel", "sdk_version", "brand", "resolution", "os_version", "app_version")
"""Columns with the attributes of a device, also the field names in `protos.registry.v1.Attributes`."""

TEXT = pa.string()
CODED = pa.dictionary(pa.int32(), pa.string())
TIME = pa.timestamp("ms", "UTC")
BYTES = pa.binary()
BOOL = pa.bool_()
ID = pa.binary(16)
UINT16 = pa.uint16()
UINT32 = pa.uint32()
UINT64 = pa.uint64()

Source = TypeVar("Source")


class Column(NamedTuple, Generic[Source]):
    """A column; `value` takes it from the source of a row, or of many rows (see `Table`)."""

    name: str
    type: pa.DataType
    value: Callable[[Source], Any]


class Row(NamedTuple):
    table: "Table[Any]"
    values: list[Any]


class Table(Generic[Source]):
    """A table of the analytics store, as it is inserted; the migrations create it and may add further columns."""

    def __init__(self, name: str, *columns: Column[Source]) -> None:
        self.name = name
        self.schema = pa.schema([(column.name, column.type) for column in columns])
        self._values = [column.value for column in columns]

    def row(self, source: Source) -> Row:
        """Return one row; each column's `value` is one Python value."""
        return Row(self, [value(source) for value in self._values])

    def from_rows(self, rows: Sequence[Row]) -> pa.Table:
        by_column = zip(*(row.values for row in rows), strict=True)
        columns = [pa.array(values, field.type) for values, field in zip(by_column, self.schema, strict=True)]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def from_arrays(self, source: Source) -> pa.Table:
        """Return many rows at once; each column's `value` is an Arrow array: of CODED, with codes of any integers."""
        return pa.Table.from_arrays([value(source) for value in self._values], names=self.schema.names)


# The names of enum values in the analytics store and in audits.

_UNKNOWN = "unknown_"


@lru_cache(maxsize=1024)
def enum_name(enum: EnumDescriptor, number: int, prefix: str) -> str:
    """Return `sent` for `OUTCOME_KIND_SENT`, and `unknown_N` for a number that only a newer writer knows."""
    value = enum.values_by_number.get(number)
    return value.name.removeprefix(prefix).lower() if value else f"{_UNKNOWN}{number}"


@lru_cache(maxsize=1024)
def enum_number(enum: EnumDescriptor, name: str, prefix: str) -> int:
    """Return the number of a name that `enum_name` gave; 0 for any other name."""
    value = enum.values_by_name.get(f"{prefix}{name.upper()}")
    if value is not None:
        return int(value.number)
    unknown = name.removeprefix(_UNKNOWN)
    return int(unknown) if unknown != name and unknown.isdecimal() else 0
