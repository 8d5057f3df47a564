"""A million outcomes in columnar batches."""

import sys
import time
from pathlib import Path

import numpy as np
import pytest

from analytics.ingestion.attributes import AttributeHistory, CountedAttributes
from analytics.ingestion.batch_reader import IngestionLimits
from analytics.ingestion.connections.spans import LatestConnections
from analytics.ingestion.known_ids import BroadcastIds, KnownDevices
from analytics.ingestion.translation import RecordTranslator, TranslationContext
from analytics.store.clickhouse import ClickHouse
from protos.delivery.v1.delivery_pb2 import OutcomeKind as Outcome
from services.log.port import NewRecord, Record
from services.log.sqlite.log import SqliteLog
from services.replica.epochs import Epochs
from tests.analytics.records import T0, app_outcomes, device, outcomes
from tests.analytics.service import new_ingestion, running_ingestion, value

OUTCOMES = 1_000_000
STORED_COLUMNS = """
SELECT arraySort(groupUniqArray(column)) FROM system.parts_columns
WHERE database = currentDatabase() AND table = 'deliveries' AND startsWith(column, '_')
"""
A_RECORD = 40_000


@pytest.fixture(scope="module")
def new_records() -> list[NewRecord]:
    """Return records as large as the log accepts."""
    every = np.arange(OUTCOMES)
    return [
        outcomes(1, app_outcomes(1000, every[at : at + A_RECORD], Outcome.OUTCOME_KIND_SENT, T0), seed=str(at))
        for at in range(0, OUTCOMES, A_RECORD)
    ]


def test_no_python_step_for_each_outcome(new_records: list[NewRecord]) -> None:
    """The number of Python calls does not depend on the number of outcomes."""

    def calls(records: list[Record], rows: int) -> int:
        count = 0

        def profile(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        context = TranslationContext(
            AttributeHistory(CountedAttributes()), BroadcastIds(), KnownDevices(), LatestConnections(), Epochs()
        )
        translator = RecordTranslator(context, "")
        sys.setprofile(profile)
        try:
            tables = translator.tables(records, lambda record, error: pytest.fail(str(error)))
        finally:
            sys.setprofile(None)
        assert tables["deliveries"].num_rows == rows
        return count

    few = outcomes(1, app_outcomes(1000, np.arange(100), Outcome.OUTCOME_KIND_SENT, T0))
    small = calls([Record(few.topic, few.partition, 0, few.key, few.value)], 100)
    large = calls([Record(new_records[0].topic, 1, 0, b"", new_records[0].value)], A_RECORD)
    assert large <= small + 10


async def test_a_million_outcomes(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path, new_records: list[NewRecord]
) -> None:
    await log.append([device(number, attributes={"region": f"r{number % 34}"}) for number in range(1000)])
    await log.append(new_records)

    start = time.perf_counter()
    limits = IngestionLimits(catch_up_s=100, ready_s=0.1)
    async with running_ingestion(new_ingestion(log, clickhouse, tmp_path, limits)) as ingestion:
        assert await ingestion.catch_up() == 0
    seconds = time.perf_counter() - start

    print(f"{OUTCOMES / seconds:,.0f} outcomes/s, {seconds:.2f} s")
    assert await value(clickhouse, "SELECT count() FROM deliveries") == OUTCOMES
    assert await value(clickhouse, "SELECT uniqExact(number) FROM deliveries WHERE kind = 'sent'") == OUTCOMES
    assert await value(clickhouse, "SELECT count() FROM deliveries WHERE region = 'r33'") == 29
    assert (
        await value(clickhouse, "SELECT countIf(_topic = 'deliveries' AND _partition = 1) FROM deliveries") == OUTCOMES
    )
    assert await value(clickhouse, STORED_COLUMNS) == ["_index", "_offset", "_rank"]
