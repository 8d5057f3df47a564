"""Delivery's state as bytes."""

from pyroaring import BitMap

from services.delivery.state.audience_parts import BitmapAudience


def test_equal_bitmaps_are_dumped_alike_however_they_were_made() -> None:
    ranges, singles = BitMap(range(5000)), BitMap()
    ranges.run_optimize()
    for number in range(5000):
        singles.add(number)
    assert BitmapAudience(1, ranges, singles).dump() == BitmapAudience(1, singles, ranges).dump()
