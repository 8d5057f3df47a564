"""Checks of the rows in the analytics store: each fact of the log is there once."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from pyroaring import BitMap

from analytics.digest import LATEST_ONLY, compared_columns
from analytics.ingestion.tables.catalogue import TABLES
from analytics.store.columns import ATTRIBUTES
from protos.push.v1.push_pb2 import KIND_UNICAST
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID
from tests.simulation.world.analytics.store import ModelStore, Row
from tests.soak.checks import Violation
from tests.soak.history import DeviceNumber, History

_RULE = "analytics"
_POSITION = ("_topic", "_partition", "partition", "_offset", "_index")
_SHOWN = 3


def row_violations(live: ModelStore, rebuilt: ModelStore, history: History) -> Iterator[Violation]:
    """Compare a store with one that was filled in one go, and both with the log."""
    yield from _inserted_twice(live)
    for table in sorted(TABLES):
        yield from _differences(f"table {table}", _contents(live, table), _contents(rebuilt, table))
    yield from _differences("pushes", _pushes(live), ((msgid, sent.order) for msgid, sent in history.sent.items()))
    yield from _differences("audiences", _audiences(live), _logged_audiences(history))
    yield from _differences("outcomes", _outcomes(live), _logged_outcomes(history))
    yield from _differences("acknowledgements", _acknowledgements(live, history), logged_receipts(history))


def _inserted_twice(store: ModelStore) -> Iterator[Violation]:
    """Yield rows that one ingester has inserted twice: they count twice in sums."""
    for table in TABLES:
        counts = Counter(
            (insert.ingester, *(row.get(column) for column in _POSITION))
            for insert in store.inserts
            if insert.table == table
            for row in insert.rows
        )
        twice = [position for position, count in counts.items() if count > 1]
        if twice:
            yield Violation(_RULE, f"{len(twice)} rows of {table} were inserted twice, such as {twice[0]}")


def _differences(what: str, found: Iterable[object], wanted: Iterable[object]) -> Iterator[Violation]:
    left, right = set(found), set(wanted)
    if left != right:
        missing, surplus = sorted(map(str, right - left)), sorted(map(str, left - right))
        yield Violation(
            _RULE,
            f"{what}: {len(missing)} missing, such as {missing[:_SHOWN]}, and {len(surplus)} too many, such as"
            f" {surplus[:_SHOWN]}",
        )


def _contents(store: ModelStore, table: str) -> Iterator[str]:
    columns = compared_columns(table)
    for row in _latest(store) if table == LATEST_ONLY else store.final(table):
        is_at_any_time = table == "push_values" and not row["attributes_until"]
        yield repr([row[column] for column in columns if not (is_at_any_time and column in ATTRIBUTES)])


def _latest(store: ModelStore) -> Iterable[Row]:
    """Return the latest record of each device: earlier ones may have been compacted away."""
    latest: dict[tuple[str, int, str], Row] = {}
    for row in store.final(LATEST_ONLY):
        device = row["appkey"], row["partition"], row["token"]
        if device not in latest or latest[device]["_offset"] < row["_offset"]:
            latest[device] = row
    return latest.values()


def _pushes(store: ModelStore) -> Iterator[tuple[int, int]]:
    """Yield the message id and the offset of each push: that of its first command."""
    return ((row["msgid"], row["_offset"]) for row in store.final("pushes"))


def _audiences(store: ModelStore) -> Iterator[tuple[int, int, str]]:
    for row in store.final("push_partitions"):
        if row["event"] == "started":
            yield row["msgid"], row["partition"], str(list(BitMap.deserialize(row["audience"])))


def _logged_audiences(history: History) -> Iterator[tuple[int, int, str]]:
    for msgid, of_partition in history.started.items():
        for partition, audience in of_partition.items():
            yield msgid, partition, str(list(audience))


def _outcomes(store: ModelStore) -> Iterator[tuple[str, int, DeviceNumber]]:
    return (
        (row["kind"], row["msgid"], DeviceNumber(row["partition"], row["number"])) for row in store.final("deliveries")
    )


def _logged_outcomes(history: History) -> Iterator[tuple[str, int, DeviceNumber]]:
    for kind, of_kind in history.outcomes.items():
        for msgid, devices in of_kind.items():
            yield from ((kind, msgid, device) for device in devices)


def _acknowledgements(store: ModelStore, history: History) -> Iterator[tuple[int, DeviceNumber]]:
    """Yield the receipts that getAckInfo returns: those of unicasts to Android devices."""
    unicasts = android_unicasts(history)
    return (
        (row["msgid"], DeviceNumber(row["partition"], row["number"]))
        for row in store.inserted("acks")
        if row["msgid"] in unicasts
    )


def logged_receipts(history: History) -> Iterator[tuple[int, DeviceNumber]]:
    """Yield the message id and device of each acknowledgement that getAckInfo has to return."""
    unicasts = android_unicasts(history)
    return (
        (msgid, device) for kind, msgid, device in _logged_outcomes(history) if kind == "received" and msgid in unicasts
    )


def android_unicasts(history: History) -> Mapping[int, str]:
    """Return the appkeys of unicast messages to Android devices, by message id."""
    return {
        msgid: sent.send.appkey
        for sent in history.sent.values()
        if sent.send.kind == KIND_UNICAST and sent.send.platform == PLATFORM_ANDROID
        for msgid in range(sent.send.msgid, sent.send.msgid + max(1, sent.send.id_count))
    }
