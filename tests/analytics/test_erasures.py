"""Erased persons in the analytics store: nothing is left of them, and a store filled from the log is the same."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast

import numpy as np
import pytest

from analytics.digest import table_digests
from analytics.erasures import Erasure, forget
from analytics.ingestion.tables.catalogue import TABLES
from analytics.store.clickhouse import ClickHouse
from analytics.store.migrate import migrate
from protos.accounts.v1.accounts_pb2 import DataRead, LogInFact
from protos.delivery.v1.delivery_pb2 import OutcomeKind as Outcome
from protos.gateway.v1.sessions_pb2 import SessionEventKind as Session
from protos.push.v1.push_pb2 import Audience, Devices, Kind, Message, SendPush, Tokens
from protos.registry.v1.devices_pb2 import AddTags, Attributes, RegisterDevice, SetAlias
from protos.registry.v1.erasures_pb2 import ErasedDevice, PersonErased
from protos.runtime.v1.log_pb2 import Origin
from protos.scheduling.v1.scheduling_pb2 import TaskFact, TaskScheduled
from services.domain.recorded_reasons import FixedReason
from services.domain.sealed_log import SealedLog
from services.domain.sealing import FEW_DEVICES, Sealer
from services.domain.topics import LOG_INS, TASKS, TOPICS
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from testkit.faults.crashing_log import KilledError
from testkit.persons import key_ring
from testkit.waiting import until
from tests.analytics.records import (
    APP,
    T0,
    app_outcomes,
    device,
    device_command,
    meta,
    new_record,
    outcomes,
    send,
    session,
    started,
)
from tests.analytics.service import ingest, value

ERASED_MS = T0 + 1_000_000
MARK = "Mark7"
"""In every value of each person, with the person's number behind it."""


class DyingStore:
    """A store whose process is killed behind a number of statements."""

    def __init__(self, clickhouse: ClickHouse, statements: int) -> None:
        self.rows = clickhouse.rows
        self._clickhouse = clickhouse
        self._left = statements

    async def command(self, sql: str) -> None:
        if not self._left:
            raise KilledError
        self._left -= 1
        await self._clickhouse.command(sql)


class Person(NamedTuple):
    """A device that is erased or stays."""

    number: int
    partition: int = 1

    @property
    def mark(self) -> str:
        return f"{MARK}x{self.partition}x{self.number}x"

    @property
    def token(self) -> str:
        return f"{self.mark}token"

    @property
    def alias(self) -> str:
        return f"{self.mark}alias"


class Installation:
    """A sealed log, with the keys of its persons."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ring = key_ring(directory / "persons")
        self.below = SqliteLog(directory / "log.sqlite", TOPICS)
        self.log = SealedLog(self.below, Sealer(self.ring), seals=True)
        self._ingested = 0

    async def fill(self, clickhouse: ClickHouse, *new_records: NewRecord) -> None:
        """Append the records, and have a store ingest the log."""
        await ingest(self.log, clickhouse, self._offsets(clickhouse), new_records)

    def _offsets(self, clickhouse: ClickHouse) -> Path:
        directory = self.directory / clickhouse.database
        directory.mkdir(exist_ok=True)
        return directory

    def name(self, person: Person) -> str:
        return self.ring.name("token", APP, person.token)

    async def erase(self, *persons: Person) -> list[Erasure]:
        """Destroy the keys of the persons, and leave stubs of their devices."""
        erasures = []
        stubs = []
        for person in persons:
            name, alias_name = self.name(person), self.ring.name("alias", APP, person.alias)
            for subject in (
                ("number", APP, str(person.partition), str(person.number)),
                ("token", APP, name, "0"),
                ("alias", APP, alias_name, "0"),
            ):
                assert self.ring.puncture(self.ring.subject(*subject))
            erased = ErasedDevice(partition=person.partition, number=person.number, token_name=name)
            erasures.append(Erasure(PersonErased(appkey=APP, devices=[erased], alias_names=[alias_name]), ERASED_MS))
            stubs.append(
                device(
                    person.number,
                    person.partition,
                    time_ms=ERASED_MS,
                    token=f"{name}/{person.number}",
                    removed_ms=ERASED_MS,
                    removed_reason=FixedReason.SILENT,
                    attributes={"region": "Bern"},
                )
            )
        empty = [NewRecord("devices", each.partition, f"{APP}/{self.name(each)}".encode(), b"") for each in persons]
        await self.log.append([*stubs, *empty])
        return erasures


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[Installation]:
    installation = Installation(tmp_path)
    yield installation
    await installation.below.close()


@pytest.fixture
async def other(engine: ClickHouse, databases: Any) -> AsyncIterator[ClickHouse]:
    """Another empty database."""
    name = await databases.take()
    database = engine.beside(name)
    yield database
    await database.close()
    await databases.give_back(name)


def listed(*persons: Person) -> Audience:
    return Audience(
        devices=Devices(
            partitions=np.array([person.partition for person in persons], "<u2").tobytes(),
            numbers=np.array([person.number for person in persons], "<u4").tobytes(),
            id_offsets=np.arange(len(persons), dtype="<u4").tobytes(),
        )
    )


def history(persons: list[Person], random: Random) -> Iterator[NewRecord]:
    """Yield what the persons' devices and app have done, with marked values."""
    for person in persons:
        origin = Origin(interface="v2", address=f"{person.mark}address", request_id="r")
        console = Origin(interface="console", address="10.0.0.9", actor="user/1")
        at: Any = {"token": person.token, "partition": person.partition}
        attributes: Any = {"region": "Bern", "model": f"{person.mark}model"}
        register = RegisterDevice(attributes=Attributes(**attributes))
        yield device_command(person.number, time_ms=T0, origin=origin, register=register, **at)
        yield device_command(person.number, time_ms=T0 + 1, origin=origin, set_alias=SetAlias(alias=person.alias), **at)
        yield device_command(
            person.number, time_ms=T0 + random.randrange(2, 9), origin=console, add_tags=AddTags(tags=[5]), **at
        )
        yield device(person.number, attributes=attributes, **at)
        yield device(
            person.number, time_ms=T0 + 9, attributes=attributes, alias=person.alias, stags=[f"{person.mark}tag"], **at
        )
        yield session(person.number, Session.SESSION_EVENT_KIND_LOGGED_IN, T0 + 20, partition=person.partition)
        read = LogInFact(
            meta=meta(f"read {person}", T0 + 30, "accounts", console),
            data_read=DataRead(appkey=APP, tokens=[person.token], name=person.alias),
        )
        yield new_record(LOG_INS.name, 0, read)
    for msgid in range(1000, 1030):
        count = random.choice([1, 1, 2, 3, FEW_DEVICES + 4])
        chosen = random.sample(persons, count)
        marks = " ".join(person.mark for person in chosen)
        kind = Kind.KIND_UNICAST if count == 1 else Kind.KIND_MULTICAST
        yield send(
            msgid,
            time_ms=T0 + msgid,
            audience=listed(*chosen),
            id_count=count,
            request_json=f'{{"token": "{marks}"}}',
            request_id=f"request {msgid}",
            kind=kind,
            message=Message(content=f"to {marks}" if count <= FEW_DEVICES else "to many"),
        )
        for person in chosen:
            yield started(msgid, person.partition, [person.number], T0 + msgid)
            yield outcomes(
                person.partition,
                app_outcomes(msgid, [person.number], Outcome.OUTCOME_KIND_SENT, T0 + msgid + 1),
                seed=f"{msgid} {person}",
            )
    yield send(2000, request_json='{"all": true}', message=Message(content="to all"))
    for number, chosen in enumerate([persons[:1], persons[1:3]]):
        pushes = [
            SendPush(
                msgid=3000 + number,
                appkey=APP,
                kind=Kind.KIND_UNICAST,
                audience=Audience(tokens=Tokens(tokens=[person.token for person in chosen])),
                message=Message(content=" ".join(person.mark for person in chosen)),
                request_json=" ".join(person.token for person in chosen),
            )
        ]
        scheduled = TaskScheduled(pushes=pushes, due_ms=T0 + 100, created_ms=T0)
        fact = TaskFact(meta=meta(f"task {number}", T0, "scheduling"), task_key=f"k{number}", scheduled=scheduled)
        yield new_record(TASKS.name, 2, fact)


PERSONS = [Person(number, partition) for partition in (1, 2) for number in range(14)]


async def contents(clickhouse: ClickHouse) -> str:
    """Return everything that the tables hold."""
    tables = [*TABLES, "broadcasts", "device_tokens"]
    return "".join([str(await clickhouse.rows(f"SELECT * FROM {name}")) for name in tables])


async def statistics(clickhouse: ClickHouse) -> list[Any]:
    """Return what statistics count."""
    queries = (
        "SELECT msgid, kind, groupBitmapMerge(devices) FROM push_outcomes GROUP BY 1, 2 ORDER BY 1, 2",
        "SELECT msgid, kind, platform, count() FROM pushes FINAL GROUP BY 1, 2, 3 ORDER BY 1, 2, 3",
        "SELECT region, count() FROM registrations FINAL GROUP BY 1 ORDER BY 1",
        "SELECT kind, region, count() FROM sessions FINAL GROUP BY 1, 2 ORDER BY 1, 2",
        "SELECT command, count() FROM device_commands FINAL GROUP BY 1 ORDER BY 1",
        "SELECT msgid, partition, groupBitmapMerge(devices) FROM push_audiences GROUP BY 1, 2 ORDER BY 1, 2",
    )
    return [await clickhouse.rows(query) for query in queries]


@pytest.mark.parametrize("seed", [1])
async def test_nothing_is_left_and_a_rebuild_is_the_same(
    installation: Installation, clickhouse: ClickHouse, other: ClickHouse, seed: int
) -> None:
    random = Random(seed)
    await installation.fill(clickhouse, *history(PERSONS, random))
    erased = [PERSONS[0], *random.sample(PERSONS[1:], 7)]
    before = await statistics(clickhouse)
    text = await contents(clickhouse)
    assert all(person.mark in text for person in PERSONS)

    erasures = await installation.erase(*erased)
    await installation.fill(clickhouse)
    assert await forget(clickhouse, erasures[:3]) >= 8
    for count in range(1, 12, 2):
        with suppress(KilledError):
            await forget(cast(ClickHouse, DyingStore(clickhouse, count)), erasures)
    await forget(clickhouse, erasures)
    assert await forget(clickhouse, erasures) == 0, "what is forgotten costs nothing"
    text = await contents(clickhouse)
    assert [person.mark for person in PERSONS if (person.mark in text) == (person in erased)] == []
    assert await statistics(clickhouse) == before

    await migrate(other)
    await installation.fill(other)
    await forget(other, erasures)
    assert await table_digests(other) == await table_digests(clickhouse)
    assert await value(other, "SELECT count() FROM pushes WHERE toUnixTimestamp64Milli(erased) > 0") > 0


@pytest.mark.long
async def test_no_file_of_the_store_has_a_marked_value(
    installation: Installation, clickhouse: ClickHouse, engine_path: Path
) -> None:
    """ClickHouse keeps former parts for some minutes; here for no time."""
    for table in (*TABLES, "broadcasts", "device_tokens"):
        await clickhouse.command(
            f"ALTER TABLE {table} MODIFY SETTING old_parts_lifetime = 0, cleanup_delay_period = 1,"
            " cleanup_delay_period_random_add = 0"
        )
    await installation.fill(clickhouse, *history(PERSONS, Random(2)))
    erased = PERSONS[:9]
    assert files_with(engine_path, [person.mark for person in erased])
    erasures = await installation.erase(*erased)
    await installation.fill(clickhouse)
    await forget(clickhouse, erasures)
    for table in (*TABLES, "broadcasts", "device_tokens"):
        await clickhouse.command(f"OPTIMIZE TABLE {table} FINAL")

    async def are_gone() -> bool:
        return not files_with(engine_path, [person.mark for person in erased])

    await until(are_gone, 120)


def files_with(directory: Path, words: list[str]) -> list[Path]:
    """Return the files in which a word is found: in clear, or in blocks of LZ4 and ZSTD that hold it as a literal."""
    found = []
    for folder, _, names in os.walk(directory):  # which passes over what is removed meanwhile
        for file in (Path(folder, name) for name in names):
            with suppress(FileNotFoundError):
                content = file.read_bytes()
                if any(word.encode() in content for word in words):
                    found.append(file)
    return found
