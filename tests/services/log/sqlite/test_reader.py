"""The recent-record cache returns what a query would, or nothing."""

from hypothesis import given
from hypothesis import strategies as st

from services.log.port import Partition, Record
from services.log.sqlite.reader import RecentRecords

P = [Partition("devices", number) for number in range(3)]


def record(partition: int, offset: int) -> Record:
    return Record("devices", partition, offset, b"k", b"%d/%d" % (partition, offset))


@given(
    st.lists(st.integers(0, 2), max_size=60),
    st.integers(300, 5000),
    st.dictionaries(st.sampled_from(P), st.integers(0, 60)),
    st.integers(1, 20),
)
def test_cached_records_are_the_added_ones(
    added: list[int], size: int, starts: dict[Partition, int], limit: int
) -> None:
    recent = RecentRecords(max_bytes=size)
    ends = [0, 0, 0]
    for number in added:
        recent.add([record(number, ends[number])])
        ends[number] += 1
    starts = {partition: min(start, ends[partition.number]) for partition, start in starts.items()}
    found, exhausted = recent.since(starts, limit)
    assert len(found) <= limit
    for partition, start in starts.items():
        own = [each for each in found if each.partition == partition.number]
        assert own == [record(partition.number, start + index) for index in range(len(own))]
        if partition in exhausted:
            assert start + len(own) == ends[partition.number]


def test_the_newest_records_stay_and_the_oldest_are_dropped() -> None:
    recent = RecentRecords(max_bytes=10 * 310)
    recent.add(record(0, offset) for offset in range(100))
    assert recent.since({P[0]: 0}, 10) == ([], [])
    found, exhausted = recent.since({P[0]: 95}, 10)
    assert [each.offset for each in found] == [95, 96, 97, 98, 99]
    assert exhausted == [P[0]]
    assert recent.since({P[0]: 100}, 10) == ([], [P[0]])
