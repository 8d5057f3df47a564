"""docs/dashboards.md, compared with the tables that the migrations create."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from analytics.store.columns import ATTRIBUTES
from analytics.store.retention_days import ACK_DAYS, AUDIT, CONTENTS, HISTORY, REFUSALS, SESSIONS, RetentionDays
from testkit.repository import ROOT
from tests.analytics.records import APP, T0
from tests.analytics.statistics.sync_store import SyncStore
from tests.analytics.store.test_dashboards import BROADCAST, devices, history

TEXT = (ROOT / "docs" / "dashboards.md").read_text()
OWN = {"ingesters", "schema_migrations"}
PLACE = ("_topic", "_partition", "_offset", "_index", "_rank")
ORIGIN = ("writer", "interface", "address", "request_id")
SHORTHANDS = {"attributes": ATTRIBUTES, "place": PLACE, "origin": ORIGIN}


class Table(NamedTuple):
    key: str
    columns: set[str]
    kept: str


def documented() -> dict[str, Table]:
    _, _, part = TEXT.partition("\n## Tables\n")
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^#|\Z)", part, re.MULTILINE | re.DOTALL))
    tables = {name: table(section) for name, section in sections.items()}
    (as_pushes,) = [name for name, section in sections.items() if "Columns as in `pushes`." in section]
    return tables | {as_pushes: tables[as_pushes]._replace(columns=tables["pushes"].columns)}


def table(section: str) -> Table:
    cells = [cell for cell in re.findall(r"^\| (.*?) \|", section, re.MULTILINE) if cell != "column"]
    words = [word for cell in cells for word in cell.split(", ")]
    columns = {column for word in words for column in SHORTHANDS.get(word, (word.strip("`"),))}
    key = re.search(r"Key: `(.*?)`", section)
    kept = re.search(r"Kept: (.*?)\.", section)
    assert key
    return Table(key[1], columns, kept[1] if kept else "")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncStore]:
    store = SyncStore(tmp_path_factory.mktemp("tables"))
    store.ingest(devices())
    store.ingest(history())
    yield store
    store.close()


def of_schema(store: SyncStore, sql: str) -> dict[str, str]:
    table = store.query(sql)
    return dict(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_every_table_is_documented_with_its_key_and_columns(store: SyncStore) -> None:
    where = "WHERE database = currentDatabase() AND engine LIKE '%MergeTree'"
    keys = of_schema(store, f"SELECT name, sorting_key FROM system.tables {where}")
    columns = of_schema(
        store,
        "SELECT table, arrayStringConcat(arraySort(groupArray(name)), ' ') FROM system.columns "
        "WHERE database = currentDatabase() GROUP BY table",
    )
    documentation = documented()
    assert documentation.keys() | OWN == keys.keys()
    for name, found in documentation.items():
        assert found.columns == set(columns[name].split()), name
        assert found.key == keys[name], name


def test_retention_and_partitions_are_documented(store: SyncStore) -> None:
    documentation = documented()
    more = {table: days for table, days in RetentionDays(0).of_tables().items() if table in SESSIONS and days}
    expected = {
        **dict.fromkeys(documentation, ""),
        **dict.fromkeys(HISTORY, "history"),
        **{name: f"sessions and {more[name]} days" if name in more else "sessions" for name in SESSIONS},
        **dict.fromkeys(AUDIT, "audit"),
        **dict.fromkeys(REFUSALS, "refusals"),
        **dict.fromkeys(CONTENTS, "for ever, but contents"),
        "acks": f"{ACK_DAYS} days",
        "login_before": "2 days",
    }
    assert {name: found.kept for name, found in documentation.items()} == expected
    parted = of_schema(store, "SELECT name, partition_key FROM system.tables WHERE database = currentDatabase()")
    for name in documentation:
        section = TEXT.partition(f"\n### {name}\n")[2].partition("\n#")[0]
        assert ("By months." in section) == parted[name].startswith("toYYYYMM("), name


@pytest.mark.parametrize("sql", re.findall(r"```sql\n(.*?)```", TEXT, re.DOTALL))
def test_every_documented_query_returns_rows(store: SyncStore, sql: str) -> None:
    values = {"appkey": f"'{APP}'", "msgid": str(BROADCAST), "from": f"toDateTime({T0 // 1000 - 60})"}
    assert store.query(re.sub(r"\{(\w+):\w+\}", lambda found: values[found[1]], sql)).num_rows


def test_values_of_kinds_and_events_are_documented(store: SyncStore) -> None:
    documentation = {name: TEXT.partition(f"\n### {name}\n")[2].partition("\n###")[0] for name in documented()}
    for name, column in [
        ("pushes", "kind"),
        ("deliveries", "kind"),
        ("push_partitions", "event"),
        ("sessions", "kind"),
    ]:
        found = store.query(f"SELECT DISTINCT toString({column}) FROM {name}").column(0).to_pylist()
        assert found
        assert all(f"`{value}`" in documentation[name] for value in found)
