"""Queries of one alias read its devices and not all of the app's."""

import sqlite3
from pathlib import Path
from unittest.mock import AsyncMock

from protos.registry.v1.devices_pb2 import Device, DeviceFact
from protos.runtime.v1.log_pb2 import Meta
from services.domain.topics import DEVICES
from services.log.port import Record
from services.registry.queries import RegistryQueries
from services.registry.rules import AliasRules
from services.registry.state import DEVICES_PER_ALIAS
from services.registry.store import ALIASES_DDL, DEVICES_DDL, AliasTable
from services.replica.sqlite_store import SqliteStore

APPKEY = "1000000001"


class TracedStore(SqliteStore):
    """Notes the statements of all its connections, with their parameters."""

    def __init__(self, path: Path, ddl: str) -> None:
        super().__init__(path, ddl)
        self.statements: list[str] = []
        self.rows.set_trace_callback(self.statements.append)

    def reading(self) -> sqlite3.Connection:
        connection = super().reading()
        connection.set_trace_callback(self.statements.append)
        return connection


def fold(rules: AliasRules, number: int, alias: str | None) -> int:
    """Give a device an alias, or none; return the number of devices for which a ClearAlias is decided."""
    device = Device(appkey=APPKEY, token=str(number), number=number, registered_ms=1, alias=alias)
    fact, record = DeviceFact(meta=Meta(time_ms=number), device=device), Record(DEVICES.name, 0, number, b"", b"")
    rules.apply(record, fact)
    return len(rules.decide(record, fact))


async def test_the_queries_of_an_alias_use_its_index(tmp_path: Path) -> None:
    devices, aliases = SqliteStore(tmp_path / "devices", DEVICES_DDL), TracedStore(tmp_path / "aliases", ALIASES_DDL)
    rules, queries = AliasRules(AliasTable(aliases), 0, 1), RegistryQueries(devices, aliases, AsyncMock())
    cleared = [fold(rules, number, "user") for number in range(DEVICES_PER_ALIAS + 2)]
    fold(rules, DEVICES_PER_ALIAS + 1, None)
    (found,) = await queries.aliases(APPKEY, ["user"])
    queries.close()

    assert cleared == [0] * DEVICES_PER_ALIAS + [1, 1]
    assert len(found.devices) == DEVICES_PER_ALIAS
    by_alias = {each for each in aliases.statements if "members" in each and "SELECT" in each and "alias = " in each}
    assert {each.partition(" FROM ")[0] for each in by_alias} >= {
        "SELECT count(*), count(dropped_by)",
        "SELECT partition, number",
        "SELECT partition, number, token, proven, dropped_by",
    }
    for statement in by_alias:
        plan = [row[3] for row in aliases.rows.execute(f"EXPLAIN QUERY PLAN {statement}")]
        assert any("USING INDEX members_by_alias (appkey=? AND alias=?)" in step for step in plan), plan
    devices.close()
    aliases.close()
