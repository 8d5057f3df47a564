"""Statistics rebuilt from Kafka, whose broker has compacted the devices, and from the archive of what has left it."""

from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from analytics.digest import table_digests
from analytics.statistics.logins import count_days
from analytics.store.clickhouse import ClickHouse
from protos.registry.v1.devices_pb2 import DeviceFact
from protos.runtime.v1.log_pb2 import Meta
from services.domain.topics import DEVICES, TOPICS, archived_partitions
from services.log.archive.archiver import DAY_MS, Archiver
from services.log.archive.directory import ArchiveDirectory
from services.log.archive.log import ArchivedLog
from services.log.kafka.log import KafkaLog
from services.log.port import Log, NewRecord, Partition
from services.process.clock import ManualClock
from testkit.clickhouse.databases import EmptyDatabases
from testkit.kafka.broker import KafkaBroker
from tests.analytics.records import PARTITIONS
from tests.analytics.statistics.histories import RandomHistory
from tests.analytics.statistics.test_rebuilt_history import ZONE, answers, live, rebuilt, requests
from tests.contract.log.reading import read_to_end

COMPACTED_SOON = {
    "cleanup.policy": "compact",
    "max.message.bytes": "1200000",
    "segment.ms": "50",
    "min.cleanable.dirty.ratio": "0.01",
}


async def compacted(log: Log) -> int:
    """Return once each partition of devices has the last record of each key only; return how many were removed.

    A segment that is still written to is not compacted, so records without a fact are written behind the devices.
    """
    removed = 0
    for number in range(PARTITIONS):
        partition = Partition(DEVICES.name, number)
        filler = NewRecord(DEVICES.name, number, b"filler", DeviceFact(meta=Meta(time_ms=1)).SerializeToString())
        while True:
            await log.append([filler])
            found = [record for record in await read_to_end(log, {partition: 0}) if record.key != b"filler"]
            if len(found) == len({record.key for record in found}):
                removed += (found[-1].offset + 1 if found else 0) - len(found)
                break
    return removed


@pytest.mark.kafka
@pytest.mark.long
@pytest.mark.parametrize("seed", [200, pytest.param(201, marks=pytest.mark.seeds)])
async def test_statistics_rebuilt_from_kafka_and_the_archive_are_those_of_the_live_store(
    engine: ClickHouse, databases: EmptyDatabases, empty_broker: KafkaBroker, tmp_path: Path, seed: int
) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=empty_broker.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(DEVICES.name, PARTITIONS, 1, topic_configs=COMPACTED_SOON)])
    await admin.close()
    log = await KafkaLog.connect(empty_broker.bootstrap, TOPICS, PARTITIONS)
    history = RandomHistory(seed, tmp_path)
    names = [await databases.take() for _ in range(2)]
    stores = [engine.beside(name) for name in names]
    try:
        for store in stores:
            await count_days(store, ZONE)
        await live(log, stores[0], tmp_path / "live", history.records(100), seed)
        asked = list(requests(history))
        wanted, contents = await answers(stores[0], history, asked), await table_digests(stores[0])
        assert await compacted(log) > 0
        archived = ArchivedLog(log, ArchiveDirectory(tmp_path / "archive"))
        clock = ManualClock(history.now_ms)
        assert await Archiver(archived, clock, archived_partitions(PARTITIONS), retention_ms=DAY_MS).archive_old() > 0
        await rebuilt(archived, stores[1], tmp_path / "rebuilt")
        assert await answers(stores[1], history, asked) == wanted
        assert await table_digests(stores[1]) == contents
    finally:
        history.close()
        await log.close()
        for store, name in zip(stores, names, strict=True):
            await store.close()
            await databases.give_back(name)
