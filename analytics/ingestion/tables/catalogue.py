"""All tables that hold facts of the log, by name; sets and sums that ClickHouse derives from them are not here."""

from typing import Any

from analytics.ingestion.outcomes import DELIVERIES_TABLE
from analytics.ingestion.tables.actions import ACTIONS_TABLE
from analytics.ingestion.tables.devices import (
    APP_CHANGES_TABLE,
    ATTRIBUTE_CHANGES_TABLE,
    CONNECTION_COUNTS_TABLE,
    DEVICE_COMMANDS_TABLE,
    DEVICES_TABLE,
    REGISTRATIONS_TABLE,
    SESSIONS_TABLE,
)
from analytics.ingestion.tables.pushes import (
    PUSH_CANCELS_TABLE,
    PUSH_PARTITIONS_TABLE,
    PUSH_VALUES_TABLE,
    PUSHES_TABLE,
    TASK_PUSHES_TABLE,
    TASKS_TABLE,
)
from analytics.ingestion.tables.refusals import REFUSED_REQUESTS_TABLE
from analytics.store.columns import Table

TABLES: dict[str, Table[Any]] = {
    table.name: table
    for table in (
        *(DEVICES_TABLE, REGISTRATIONS_TABLE, ATTRIBUTE_CHANGES_TABLE, DEVICE_COMMANDS_TABLE, APP_CHANGES_TABLE),
        *(PUSHES_TABLE, TASK_PUSHES_TABLE, PUSH_CANCELS_TABLE, TASKS_TABLE, PUSH_PARTITIONS_TABLE, PUSH_VALUES_TABLE),
        *(SESSIONS_TABLE, CONNECTION_COUNTS_TABLE, DELIVERIES_TABLE, ACTIONS_TABLE, REFUSED_REQUESTS_TABLE),
    )
}
