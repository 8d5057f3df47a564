"""The attributes of devices by device number."""

from pathlib import Path

import numpy as np
from pyroaring import BitMap

from analytics.ingestion.attributes import AttributeHistory, CountedAttributes, load
from analytics.ingestion.audience_values import bitmaps_by_value
from analytics.store.clickhouse import ClickHouse
from analytics.store.columns import ATTRIBUTES
from protos.registry.v1.devices_pb2 import Attributes
from services.log.sqlite.log import SqliteLog
from tests.analytics.records import APP, T0, device
from tests.analytics.service import ingest

REGION = ATTRIBUTES.index("region")
BRAND = ATTRIBUTES.index("brand")
_KIND_AND_LENGTH = 2


def regions(attributes: CountedAttributes, partition: int, numbers: list[int]) -> list[str]:
    codes = attributes.codes(APP, partition, np.array(numbers, np.uint32))[REGION]
    return [attributes.encoders[REGION].string(code) for code in codes.tolist()]


def test_unknown_numbers_have_no_attributes() -> None:
    attributes = CountedAttributes()
    assert regions(attributes, 0, [0, 4_000_000_000]) == ["", ""]
    attributes.note(APP, 0, 5, Attributes(region="北京市"))

    assert regions(attributes, 0, [4, 5, 6, 4_000_000_000]) == ["", "北京市", "", ""]
    assert regions(attributes, 1, [5]) == [""]
    assert attributes.strings(attributes.codes_of(APP, 0, 5))[REGION] == "北京市"
    assert attributes.strings(attributes.codes_of(APP, 0, 4_000_000_000)) == [""] * len(ATTRIBUTES)


def test_more_values_than_two_bytes_can_encode() -> None:
    attributes = CountedAttributes()
    attributes.note(APP, 0, 0, Attributes(region="first"))
    for number in range(70_000):
        attributes.note(APP, 1, number, Attributes(region=f"region {number}"))

    assert regions(attributes, 0, [0]) == ["first"]
    assert regions(attributes, 1, [0, 65_534, 65_535, 69_999]) == [f"region {n}" for n in (0, 65_534, 65_535, 69_999)]


def test_the_bitmap_of_values_that_all_devices_of_an_audience_share_is_made_once() -> None:
    attributes = CountedAttributes()
    attributes.note(APP, 1, 4, Attributes(region="north", brand="x"))
    attributes.note(APP, 1, 7, Attributes(region="south", brand="x"))

    mixed = bitmaps_by_value(AttributeHistory(attributes), APP, 1, BitMap([4, 7]), 0)
    devices = [
        [(value, BitMap.deserialize(bitmap[_KIND_AND_LENGTH:])) for value, bitmap in mixed[at]]
        for at in (REGION, BRAND)
    ]
    assert devices == [[("north", BitMap([4])), ("south", BitMap([7]))], [("x", BitMap([4, 7]))]]

    single = bitmaps_by_value(AttributeHistory(attributes), APP, 1, BitMap([7]), 0)
    assert [value for ((value, _),) in single] == attributes.strings(attributes.codes_of(APP, 1, 7))
    assert single[REGION][0][1] == mixed[REGION][1][1]
    assert len({id(bitmap) for ((_, bitmap),) in single}) == 1


async def test_attributes_are_loaded_from_the_store(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    new_records = [
        device(number, partition, attributes={"region": f"{partition}-{number}", "brand": "x"})
        for partition in (0, 1, 3)
        for number in (0, 2, 500)
    ]
    await ingest(log, clickhouse, tmp_path, new_records)
    await ingest(log, clickhouse, tmp_path, [device(2, 1, time_ms=T0 + 1, attributes={"region": "new"})])

    attributes = CountedAttributes()
    await load(attributes, clickhouse)

    for partition in (0, 3):
        wanted = [f"{partition}-0", "", f"{partition}-2", f"{partition}-500"]
        assert regions(attributes, partition, [0, 1, 2, 500]) == wanted
    assert regions(attributes, 1, [0, 2]) == ["1-0", "new"]
    assert attributes.strings(attributes.codes_of(APP, 1, 2)) == ["new", "", "", "", "", "", "", ""]
