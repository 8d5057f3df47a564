"""The alias index, which does not depend on the order in which partitions and topics are read."""

import itertools
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from protos.gateway.v1.sessions_pb2 import SESSION_EVENT_KIND_APP_OPENED, SessionBatch, SessionEvent, SessionFact
from protos.registry.v1.devices_pb2 import Device, DeviceFact
from protos.runtime.v1.log_pb2 import Meta
from services.domain.topics import DEVICES, SESSIONS
from services.log.port import Record
from services.registry.rules import AliasRules
from services.registry.state import DEVICES_PER_ALIAS
from services.registry.store import ALIASES_DDL, AliasTable
from services.replica.sqlite_store import SqliteStore
from testkit.examples import examples

APPKEY = "1000000001"
Step = tuple[Record, DeviceFact | SessionFact]


class Index:
    """Alias rules over an empty store."""

    def __init__(self, path: Path) -> None:
        self.store = SqliteStore(path, ALIASES_DDL)
        self.rules = AliasRules(AliasTable(self.store), 0, 1)

    def fold(self, steps: Iterable[Step]) -> list[str]:
        """Apply the steps one by one. Returns the tokens for which a ClearAlias is decided, in order."""
        cleared = []
        for record, fact in steps:
            self.rules.apply(record, fact)
            assert self.largest_alias() <= DEVICES_PER_ALIAS
            if isinstance(fact, DeviceFact):
                cleared += [follows.message.token for follows in self.rules.decide(record, fact)]
        return cleared

    def largest_alias(self) -> int:
        query = "SELECT count(*) FROM members WHERE alias IS NOT NULL AND dropped_by IS NULL GROUP BY alias"
        return max((int(row[0]) for row in self.store.rows.execute(query)), default=0)

    def has_dropped(self) -> bool:
        return bool(self.store.rows.execute("SELECT 1 FROM members WHERE dropped_by IS NOT NULL").fetchone())

    def found(self) -> set[str]:
        query = "SELECT token FROM members WHERE alias IS NOT NULL AND dropped_by IS NULL"
        return {row[0] for row in self.store.rows.execute(query)}


@contextmanager
def empty_index() -> Iterator[Index]:
    with tempfile.TemporaryDirectory() as directory:
        index = Index(Path(directory) / "aliases.sqlite")
        yield index
        index.store.close()


def device(
    partition: int,
    offset: int,
    number: int,
    alias: str | None,
    at_ms: int,
    *,
    removed: bool = False,
    proven: bool = False,
) -> Step:
    state = Device(appkey=APPKEY, token=f"{partition}.{number}", partition=partition, number=number, registered_ms=1)
    if alias:
        state.alias, state.alias_set_ms, state.alias_proven = alias, at_ms, proven
    if removed:
        state.removed_ms = at_ms
    fact = DeviceFact(meta=Meta(time_ms=at_ms), device=state)
    return Record(DEVICES.name, partition, offset, b"", b""), fact


def session(partition: int, offset: int, number: int, at_ms: int) -> Step:
    event = SessionEvent(appkey=APPKEY, number=number, kind=SESSION_EVENT_KIND_APP_OPENED, time_ms=at_ms)
    return Record(SESSIONS.name, partition, offset, b"", b""), SessionFact(batch=SessionBatch(events=[event]))


def spread(alias: str, count: int, start: int = 0) -> list[Step]:
    """Return records of devices that get the alias one after the other, in two partitions."""
    return [device(index % 2, index // 2, index, alias, 100 + index) for index in range(start, start + count)]


class GeneratedRecord(NamedTuple):
    topic: str
    partition: int
    number: int
    alias: str | None
    at_ms: int
    removed: bool
    proven: bool


DRAWN = st.lists(
    st.builds(
        GeneratedRecord,
        st.sampled_from([DEVICES.name, SESSIONS.name]),
        st.integers(0, 1),
        st.integers(0, 7),
        st.sampled_from([None, "alice", "alice", "bob"]),
        st.integers(2, 60),
        st.sampled_from([False, False, False, True]),
        st.booleans(),
    ),
    max_size=60,
)


def by_partition(drawn: Sequence[GeneratedRecord]) -> list[list[Step]]:
    """Return the drawn facts grouped by topic and partition."""
    partitions: dict[tuple[str, int], list[Step]] = {}
    for offset, one in enumerate(drawn):
        steps = partitions.setdefault((one.topic, one.partition), [])
        if one.topic == DEVICES.name:
            flags = {"removed": one.removed, "proven": one.proven}
            steps.append(device(one.partition, offset, one.number, one.alias, one.at_ms, **flags))
        else:
            steps.append(session(one.partition, offset, one.number, one.at_ms))
    return list(partitions.values())


@settings(max_examples=examples(60), deadline=None)
@given(DRAWN, st.randoms(use_true_random=False))
def test_the_index_does_not_depend_on_the_order_of_reading(drawn: list[GeneratedRecord], random: Random) -> None:
    partitions = by_partition(drawn)
    order = [index for index, steps in enumerate(partitions) for _ in steps]
    random.shuffle(order)
    unread = [iter(steps) for steps in partitions]
    with empty_index() as one, empty_index() as other:
        one.fold(itertools.chain.from_iterable(partitions))
        other.fold(next(unread[index]) for index in order)
        assert members(one) == members(other)
        assert len(one.found()) == len(other.found())
        if not one.has_dropped():
            assert list(one.store.dump()) == list(other.store.dump())


def members(index: Index) -> list[tuple[object, ...]]:
    query = "SELECT appkey, partition, number, used_ms, alias, token, since_ms, proven FROM members ORDER BY 1, 2, 3"
    return index.store.rows.execute(query).fetchall()


def test_a_device_with_a_new_number_is_removed_under_its_former_one() -> None:
    """Compaction may have dropped the record that removed the device under that number."""
    with empty_index() as index:
        assert index.fold(spread("alice", 11)) == ["0.0"]
        record, fact = device(1, 99, 40, "bob", 200)
        assert isinstance(fact, DeviceFact)
        fact.device.former_numbers.append(1)
        index.fold([(record, fact)])
        assert len(index.found()) == 11
        assert {"0.0", "1.40"} <= index.found()
        assert "1.1" not in index.found()


def test_the_eleventh_device_drops_the_least_active_one_with_one_command() -> None:
    with empty_index() as index:
        assert index.fold(spread("alice", 10)) == []
        assert index.fold([session(0, 0, 0, 500)]) == []
        assert index.fold(spread("alice", 1, start=10)) == ["1.1"]
        assert "1.1" not in index.found()
        assert index.fold([device(0, 99, 2, "alice", 102)]) == []


def test_a_drop_without_effect_is_commanded_again_after_a_minute() -> None:
    with empty_index() as index:
        assert index.fold(spread("alice", 11)) == ["0.0"]
        assert index.fold([device(0, 99, 2, "alice", 60_109)]) == []
        assert index.fold([device(0, 100, 2, "alice", 60_110)]) == ["0.0"]


def test_a_device_that_leaves_restores_a_dropped_one() -> None:
    """The result is as if the eleventh device had come after the other one left."""
    with empty_index() as index:
        index.fold(spread("alice", 12))
        assert index.found() == {f"{number % 2}.{number}" for number in range(2, 12)}
        index.fold([device(1, 99, 5, None, 200)])
        assert index.found() == {f"{number % 2}.{number}" for number in range(1, 12) if number != 5}
        index.fold([device(0, 99, 0, "bob", 200)])
        assert index.found() == {f"{number % 2}.{number}" for number in range(12) if number != 5}


def test_activity_before_the_alias_was_set_is_kept() -> None:
    with empty_index() as index:
        index.fold([session(0, 0, 3, 900), device(0, 1, 3, "alice", 100)])
        assert members(index) == [(APPKEY, 0, 3, 900, "alice", "0.3", 100, 0)]
        index.fold([device(0, 2, 3, None, 950)])
        assert members(index) == [(APPKEY, 0, 3, 900, None, None, 0, 0)]


def test_a_time_far_ahead_is_replaced_at_the_next_activity_and_a_late_event_changes_nothing() -> None:
    day_ms = 86_400_000
    now_ms = 1000 * day_ms
    times_ms = [now_ms, now_ms - day_ms, now_ms + 200 * day_ms, now_ms + 1, now_ms + 1 + day_ms, now_ms + 2]
    used_ms = [now_ms, now_ms, now_ms + 200 * day_ms, now_ms + 1, now_ms + 1 + day_ms, now_ms + 1 + day_ms]
    with empty_index() as index:
        for offset, (time_ms, expected_ms) in enumerate(zip(times_ms, used_ms, strict=True)):
            index.fold([session(0, offset, 0, time_ms)])
            assert index.store.rows.execute("SELECT used_ms FROM members").fetchall() == [(expected_ms,)]


def test_a_device_without_alias_and_activity_has_no_row() -> None:
    with empty_index() as index:
        index.fold([device(0, 0, 3, "alice", 100), device(0, 1, 3, None, 200), device(1, 0, 4, None, 200)])
        assert members(index) == []
