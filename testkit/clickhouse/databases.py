"""A pool of empty databases in one analytics store, which tests reuse: migrating a new one takes half a second."""

import asyncio
from collections.abc import Iterator

from analytics.statistics.logins import LOGIN_DAYS_VIEW
from analytics.store.clickhouse import ClickHouse
from analytics.store.migrate import migrate

_SCHEMA = """
SELECT name, create_table_query FROM system.tables WHERE database = {database:String} ORDER BY name
"""
_FILLED = """
SELECT DISTINCT table FROM system.parts
WHERE active AND database = {database:String} AND table != 'schema_migrations'
"""


class EmptyDatabases:
    """Migrated databases without rows in the opened store `engine`, under the given names.

    `free` are those that an earlier pool in the same store has left; this one leaves its own there.
    """

    def __init__(
        self, engine: ClickHouse, names: Iterator[str], free: list[tuple[str, list[str]]] | None = None
    ) -> None:
        self._engine = engine
        self._names = names
        self._free = [] if free is None else free
        self._schemas: dict[str, list[str]] = {}

    async def take(self) -> str:
        """Return the name of an empty database; a server's database of that name is emptied first."""
        if self._free:
            name, self._schemas[name] = self._free.pop()
            return name
        name = next(self._names)
        database = self._engine.beside(name)
        await database.drop()
        await migrate(database)
        await database.close()
        self._schemas[name] = await self._schema(name)
        return name

    async def give_back(self, name: str) -> None:
        """Delete all rows, and the view of log-ins; a database that a test has changed otherwise is not used again."""
        schema = self._schemas.pop(name)
        await self._engine.command(f"DROP VIEW IF EXISTS {name}.{LOGIN_DAYS_VIEW} SYNC")
        if await self._schema(name) != schema:
            return
        filled = [table for (table,) in await self._engine.rows(_FILLED, {"database": name})]
        await asyncio.gather(*(self._engine.command(f"TRUNCATE TABLE {name}.{table}") for table in filled))
        self._free.append((name, schema))

    async def _schema(self, name: str) -> list[str]:
        tables = [str(row) for row in await self._engine.rows(_SCHEMA, {"database": name})]
        if not tables:
            return tables
        applied = f"SELECT DISTINCT version FROM {name}.schema_migrations ORDER BY version"
        return [*tables, str(await self._engine.rows(applied))]
