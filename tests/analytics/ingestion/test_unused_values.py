"""Attribute values that no device has any more are forgotten, and never those that anything still refers to."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from analytics.ingestion import attributes as attributes_module
from analytics.ingestion.attributes import FEW_VALUES, CountedAttributes, DictionaryEncoder
from analytics.ingestion.batch_writer import BatchWriter
from analytics.ingestion.connections.spans import LatestConnections
from analytics.store.clickhouse import ClickHouse
from analytics.store.columns import ATTRIBUTES
from analytics.store.offsets import Range
from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.gateway.v1.sessions_pb2 import SessionEventKind
from protos.registry.v1.devices_pb2 import Attributes
from services.domain.topics import DELIVERIES
from services.log.port import NewRecord, Partition, Record
from services.replica.dead_letters import DeadLetters
from services.replica.epochs import Epochs
from tests.analytics.records import APP, T0, app_outcomes, device, outcomes, session
from tests.analytics.service import value

REGION = ATTRIBUTES.index("region")


@pytest.fixture
async def writer(clickhouse: ClickHouse, tmp_path: Path) -> AsyncIterator[BatchWriter]:
    dead_letters = DeadLetters(tmp_path / "dead-letters.jsonl", "analytics")
    writer = BatchWriter(clickhouse, tmp_path / "offsets.db", dead_letters, instance="0/1", stores_commands=True)
    await writer.open()
    await writer.load()
    yield writer
    await writer.close()


def stored(*new_records: NewRecord) -> Sequence[Record]:
    return [Record(each.topic, each.partition, at, each.key, each.value) for at, each in enumerate(new_records)]


def test_values_that_devices_invent_are_forgotten_once_they_have_others() -> None:
    attributes, connections = CountedAttributes(), LatestConnections()
    attributes.note(APP, 0, 1, Attributes(region="first", brand="kept"))
    for batch in range(40):
        for number in range(2, 2002):
            attributes.note(APP, 0, number, Attributes(region=f"{batch} {number}", brand="kept"))
        attributes.free_unused(connections.mark_values)
    assert len(attributes.encoders[REGION]) < FEW_VALUES + 2 * 2002
    for number, region in ((1, "first"), (2, "39 2"), (2001, "39 2001")):
        assert attributes.strings(attributes.codes_of(APP, 0, number))[REGION] == region


def test_a_batch_has_the_values_of_its_rows_alone_where_there_are_many_others() -> None:
    encoder = DictionaryEncoder()
    codes = np.array([encoder.code(f"value {number}") for number in range(1000)])
    indices, strings = encoder.strings_of(codes[[7, 3, 7, 999]])
    assert len(strings) == 3
    assert strings.take(indices).to_pylist() == ["value 7", "value 3", "value 7", "value 999"]


def test_no_string_of_a_large_batch_is_there_twice() -> None:
    """ClickHouse refuses a dictionary that has a string twice."""
    encoder = DictionaryEncoder()
    codes = np.array([encoder.code(f"value {number}") for number in range(10)])
    encoder.free(np.isin(np.arange(len(encoder)), codes[:5]))
    indices, strings = encoder.strings_of(np.tile(codes[:5], 100))
    assert strings.take(indices).to_pylist() == [f"value {number}" for number in range(5)] * 100
    assert strings.value_counts().field("counts").to_pylist() == [1] * len(strings)


async def test_the_end_of_a_connection_is_counted_under_the_values_of_its_opening(
    writer: BatchWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The latest connection of device 1, and the one before it, have values that their devices have no more."""
    monkeypatch.setattr(attributes_module, "FEW_VALUES", 4)
    await writer.load()
    opened, closed = SessionEventKind.SESSION_EVENT_KIND_OPENED, SessionEventKind.SESSION_EVENT_KIND_CLOSED
    for connection, region in ((1, "before"), (2, "latest")):
        changed = device(1, attributes={"region": region}, time_ms=T0 + connection)
        await writer.translate(stored(changed, session(1, opened, T0 + connection * 600_000, connection=connection)))
    for number in range(20):
        await writer.translate(stored(device(1, attributes={"region": f"invented {number}"}, time_ms=T0 + 2 + number)))
    assert len(writer._context.history.attributes.encoders[REGION]) < 20
    ends = [session(1, closed, T0 + c * 600_000 + 120_000, connection=c) for c in (2, 1)]
    batch = await writer.translate(stored(*ends))
    changes = batch.tables["connection_changes"].to_pylist()
    assert {row["info"] for row in changes if row["category"] == "region"} == {"before", "latest"}


async def test_outcomes_that_are_written_ahead_keep_the_values_that_devices_had(
    writer: BatchWriter, clickhouse: ClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attributes_module, "FEW_VALUES", 4)
    await writer.load()
    received = OutcomeKind.OUTCOME_KIND_RECEIVED
    await writer.translate(stored(device(1, attributes={"region": "north"})))

    async def pages() -> AsyncIterator[Sequence[Record]]:
        yield stored(outcomes(1, app_outcomes(1000, [1], received)))
        for number in range(20):
            region = {"region": f"invented {number}"}
            await writer.translate(stored(device(1, attributes=region, time_ms=T0 + number)))

    batch = {Partition(DELIVERIES.name, 1): Range(0, 1)}
    assert await writer.write_ahead(APP, pages(), batch, Epochs(), max_rows=10)
    assert await value(clickhouse, "SELECT groupArray(region) FROM deliveries") == ["north"]
