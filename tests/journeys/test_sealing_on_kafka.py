"""`carillon keys seal` and an erasure on Kafka: the brokers have no clear value, and no key for an erased person."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from services.domain.master_key import OptionalPurpose, create_master, read_keys
from services.domain.person_key_topic import KEYS_PARTITION, TopicKeys, WrappingKeys
from services.domain.person_keys import KeyRing
from services.domain.sealing import Sealer, sealed_part
from services.domain.topics import KEYS, TOPICS, decode
from services.log.kafka.log import KafkaLog
from services.log.kafka.topics import wanted
from services.log.port import Log, Partition, Record
from services.process.clock import SystemClock
from services.replica.catch_up import read_until
from testkit.installation.processes import Installation
from testkit.kafka.broker import KafkaBroker
from testkit.waiting import until
from tests.journeys.test_sealing import found, marked, sealed_since, use

ROLES = ("registry", "targeting", "scheduling", "delivery", "gateway", "edge")
PARTITIONS = 8


@pytest.mark.long
@pytest.mark.kafka
async def test_brokers_have_no_clear_value_and_no_key_of_an_erased_person(
    tmp_path: Path, empty_broker: KafkaBroker
) -> None:
    installation = Installation(tmp_path / "data", empty_broker.bootstrap)
    with contextlib.closing(installation):
        key = given_key(installation)
        await asyncio.to_thread(installation.start, *ROLES)
        app = await asyncio.to_thread(installation.create_app)
        sealed = await asyncio.to_thread(sealed_since, installation)
        assert sealed["already_sealed"], "a new installation seals, because each process has the key"
        persons = [marked(), marked(), marked()]
        for values in persons:
            device = await use(installation, app, values)
            values["token"] = str(device.token)
            await device.close()
        first, second, kept = persons
        raw = await KafkaLog.connect(empty_broker.bootstrap, TOPICS, partitions=PARTITIONS, read_only=True)
        await compact_soon(empty_broker)  # no process may start from then on: each checks the settings of topics
        try:
            records, keys = await everything(raw), await keys_in(raw, key)
            assert all(opened(records, keys, values).keys() == values.keys() for values in persons)
            await erase(installation, app.appkey, first)
            await erase(installation, app.appkey, second)  # whose keys end the segment that has those of the first

            async def former_keys_are_gone() -> bool:
                """Kafka ends a segment when something is appended, so the last record's former one stays until then."""
                of_keys = [record for record in await everything(raw) if record.topic == KEYS.name]
                return max(Counter(record.key for record in of_keys[:-1]).values()) == 1

            await until(former_keys_are_gone)
            records, keys = await everything(raw), await keys_in(raw, key)
            assert opened(records, keys, kept).keys() == kept.keys()
            for values in (first, second):
                left = opened(records, keys, values)
                assert left.keys() == {"everyone"}, left
            for values in persons:
                stored = b"".join(part for record in records for part in (record.key, record.value))
                assert {kind for kind, value in values.items() if value.encode() in stored} == {"everyone"}
        finally:
            await raw.close()
        await asyncio.to_thread(installation.stop)
        for values in persons:
            assert found(empty_broker.data, values) <= {"everyone"}


def given_key(installation: Installation) -> WrappingKeys:
    """Give every process the file that opens the keys of persons, as on a cluster; return the keys in it."""
    installation.data.mkdir()
    create_master(installation.data / "master.key")
    file = installation.data / "persons.key"
    installation.carillon("keys", "export", "--persons-key", str(file))
    installation.env["CARILLON_PERSONS_KEY_FILE"] = str(file)
    return WrappingKeys(lambda: read_keys(file, OptionalPurpose.PERSONS))


async def compact_soon(broker: KafkaBroker) -> None:
    """Let Kafka remove replaced keys at once; an installation's within about an hour."""
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    try:
        soon = {**wanted(KEYS, 1), "segment.ms": "1", "max.compaction.lag.ms": "1"}
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, KEYS.name, soon)])
    finally:
        await admin.close()


async def erase(installation: Installation, appkey: str, values: Mapping[str, str]) -> None:
    person = ("person", "erase", "--app", appkey, "--alias", values["alias"], "--yes", "--json")
    assert json.loads(await asyncio.to_thread(installation.carillon, *person))["devices"] == 1

    async def is_erased() -> bool:
        return "erasure_id" not in await asyncio.to_thread(installation.carillon, *person, check=False)

    await until(is_erased)


async def everything(log: Log) -> list[Record]:
    """Return all records that the brokers have."""
    partitions = [Partition(topic.name, p) for topic in TOPICS.values() for p in range(topic.partitions(PARTITIONS))]
    ends, starts = await log.ends(partitions), await log.begins(partitions)
    async with aclosing(read_until("test", log, starts, ends)) as batches:
        return [record async for records, _ in batches for record in records]


async def keys_in(log: Log, key: WrappingKeys) -> Sealer:
    """Return the keys of persons that are in the topic."""
    held = TopicKeys(log, SystemClock(), key)
    for record in await everything(log):
        if record.topic == KEYS_PARTITION.topic:
            held.apply(record)
    return Sealer(KeyRing(held))


def opened(records: Sequence[Record], keys: Sealer, values: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the kinds of the values that whoever has the log, and the keys in it, can read, and in which topics."""
    found: dict[str, set[str]] = {}
    for record in records:
        sealed = sealed_part(record.value)
        parts = keys.opened(record.topic, sealed) if sealed is not None else ()
        read = decode(Record(*record[:5], parts)).SerializeToString() if record.value else b""
        for kind, value in values.items():
            if value.encode() in read:
                found.setdefault(kind, set()).add(f"{record.topic}/{record.partition}/{record.offset}")
    return found
