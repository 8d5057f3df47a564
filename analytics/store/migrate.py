"""Applies the numbered SQL files of `migrations/` and its folders in order, each once."""

from importlib import resources
from typing import NamedTuple

from analytics.store.clickhouse import ClickHouse
from services.errors import UnavailableError
from services.process.logs import logger

_APPLIED = """
CREATE TABLE IF NOT EXISTS schema_migrations (
  version UInt32, name String, time DateTime64(3, 'UTC') DEFAULT now64(3)
) ENGINE = MergeTree ORDER BY version
"""


class Migration(NamedTuple):
    version: int
    name: str
    statements: list[str]


def migrations() -> list[Migration]:
    """Return all migrations by version. Files are NNNN_name.sql; a statement ends with a semicolon at a line's end."""
    directory = resources.files("analytics.store").joinpath("migrations")
    folders = [directory, *(entry for entry in directory.iterdir() if entry.is_dir())]
    files = [file for folder in folders for file in folder.iterdir() if file.name.endswith(".sql")]
    return [_migration(file.name, file.read_text(encoding="utf-8")) for file in sorted(files, key=lambda f: f.name)]


async def migrate(clickhouse: ClickHouse) -> None:
    """Apply the missing migrations. Statements may run twice: after a crash the next call repeats the migration.

    In an existing store each migration is logged; in a new one only the newest version.
    """
    applied, newest = await _applied(clickhouse), 0
    for migration in migrations():
        newest = migration.version
        if newest not in applied:
            await _apply(migration, clickhouse)
            if applied:
                logger.info("analytics store migrated", version=newest, name=migration.name)
    if not applied:
        logger.info("analytics store created", version=newest)


async def _apply(migration: Migration, clickhouse: ClickHouse) -> None:
    for statement in migration.statements:
        await clickhouse.command(statement)
    await clickhouse.command(
        "INSERT INTO schema_migrations (version, name) SELECT {version:UInt32}, {name:String}",
        {"version": migration.version, "name": migration.name},
    )


async def check_migrated(clickhouse: ClickHouse) -> None:
    """Check that the store is up to date. UnavailableError: the first instance has not applied all migrations yet."""
    missing = {migration.version for migration in migrations()} - await _applied(clickhouse)
    if missing:
        raise UnavailableError(f"instance 0 of analytics has yet to apply {len(missing)} migrations to the store")


async def _applied(clickhouse: ClickHouse) -> set[int]:
    await clickhouse.command(_APPLIED)
    return {version for (version,) in await clickhouse.rows("SELECT DISTINCT version FROM schema_migrations")}


def _migration(file_name: str, text: str) -> Migration:
    number, _, name = file_name.removesuffix(".sql").partition("_")
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    statements = [statement.strip() for statement in f"{lines}\n".split(";\n") if statement.strip()]
    return Migration(int(number), name, statements)
