"""From when on a process seals personal values, and with which keys: files beside an embedded log, or a topic."""

import ast
import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest
from structlog.testing import capture_logs

from protos.push.v1.push_pb2 import Audience, Everyone, PushCommand, SendPush, Tokens
from protos.registry.v1.apps_pb2 import App, AppChanged, AppFact
from protos.registry.v1.devices_pb2 import DeviceCommand, SetAlias
from protos.registry.v1.registry_pb2 import NoteKeysCopiedRequest, SealRequest
from protos.runtime.v1.log_pb2 import Origin
from services.domain.apps import APPS_PARTITION
from services.domain.master_key import (
    OptionalPurpose,
    create_master,
    derive,
    fingerprint_of,
    next_master_file,
    read_masters,
)
from services.domain.person_key_topic import KEYS_PARTITION
from services.domain.person_keys import KeyFiles, KeyStoreError, PersonKeySet, PuncturedError
from services.domain.role import RoleContext
from services.domain.role_context import role_context
from services.domain.sealed_log import SealedLog
from services.domain.sealing import Sealer
from services.domain.sealing_switch import (
    PersonKeys,
    fill_topic,
    person_keys,
    person_keys_directory,
    stored_person_keys,
)
from services.domain.settings import Settings
from services.domain.topics import DEVICE_COMMANDS, KEYS, PUSH_COMMANDS, TOPICS, decode
from services.errors import CarillonError, ConflictError, UnavailableError
from services.log.port import Log, NewRecord, Partition, Record
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from services.process.metrics import PERSON_KEYS_UNCOPIED
from services.registry.key_rotation import ChangeQueue
from services.registry.main import first_sealing
from services.registry.sealing import FormerKeys, SealingSwitch
from services.registry.settings import RegistrySettings
from services.replica.peers import Peers
from services.replica.tenure import Tenure
from testkit.repository import ROOT
from testkit.waiting import until, until_holds

COMMANDS = Partition(DEVICE_COMMANDS.name, 0)
PUSHES = Partition(PUSH_COMMANDS.name, 0)
BROADCAST = f"broadcast {secrets.token_hex(16)}"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    create_master(tmp_path / "master.key")
    return Settings(data_dir=str(tmp_path), partitions=1)


@pytest.fixture
def in_kafka(settings: Settings) -> Settings:
    """Settings of a process whose keys are in the topic; the tests give it an embedded log in Kafka's place."""
    return Settings(data_dir=settings.data_dir, partitions=1, kafka_bootstrap="kafka:9092")


@asynccontextmanager
async def process(
    settings: Settings, role: str | None = None, *, is_up: bool = False
) -> AsyncIterator[tuple[RoleContext, PersonKeys]]:
    log = SqliteLog(settings.data / "log.db", TOPICS, partitions=1)
    async with role_context(settings, Peers({}, TOPICS), log=log, creates_master=is_up, role=role) as context:
        assert context.persons is not None
        yield context, context.persons


def switch(context: RoleContext) -> SealingSwitch:
    async def write(changed: AppChanged, facts: Mapping[bytes, AppFact], origin: Origin) -> None:
        records = [NewRecord(*APPS_PARTITION, key, fact.SerializeToString()) for key, fact in facts.items()]
        offsets = await context.log.append(records)
        await context.apps.applied.wait([(APPS_PARTITION, offsets[-1])])

    return SealingSwitch(context, ChangeQueue(), write)


async def with_an_app(context: RoleContext) -> None:
    """Give the installation an app, so that it is no new one."""
    fact = AppFact(app=App(appkey="1000000001"))
    await context.log.append([NewRecord(*APPS_PARTITION, b"1000000001", fact.SerializeToString())])


async def write(context: RoleContext, token: str, alias: str, content: str) -> None:
    """Append what a device and an app server send, and a broadcast."""
    command = DeviceCommand(appkey="1000000001", token=token, set_alias=SetAlias(alias=alias))
    unicast = SendPush(msgid=1, appkey="1000000001", audience=Audience(tokens=Tokens(tokens=[token])))
    unicast.message.content = content
    broadcast = SendPush(msgid=2, appkey="1000000001", audience=Audience(everyone=Everyone()))
    broadcast.message.content = BROADCAST
    sent = [PushCommand(send=send).SerializeToString() for send in (unicast, broadcast)]
    await context.log.append(
        [NewRecord(*COMMANDS, b"k", command.SerializeToString()), *(NewRecord(*PUSHES, b"k", each) for each in sent)]
    )


async def tokens(context: RoleContext) -> list[str]:
    """Return the tokens of the commands in the log, as this process reads them."""
    reader = await context.log.open({COMMANDS: 0})
    records = await reader.read()
    await reader.close()
    return [decode(record).token for record in records]


def marked() -> tuple[str, str, str]:
    return f"t{secrets.token_hex(16)}", f"a{secrets.token_hex(16)}", f"c{secrets.token_hex(16)}"


def on_disk(directory: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(directory.rglob("*")) if file.is_file())


async def test_nothing_marked_is_in_the_log_once_it_seals_and_broadcasts_are(settings: Settings) -> None:
    clear, sealed, child = marked(), marked(), marked()
    async with process(settings, is_up=True) as (context, _):
        await with_an_app(context)
        await write(context, *clear)
        first = await switch(context).seal(SealRequest())
        await write(context, *sealed)
        again = await switch(context).seal(SealRequest())
        assert (first.already_sealed, again.already_sealed) == (False, True)
        assert first.since_ms == again.since_ms > 0
        assert await tokens(context) == [clear[0], sealed[0]]
    async with process(settings, "console") as (context, _):
        await write(context, *child)
        assert await tokens(context) == [clear[0], sealed[0], child[0]]
    stored = on_disk(settings.data)
    assert all(value.encode() in stored for value in (*clear, BROADCAST))
    assert not [value for value in (*sealed, *child) if value.encode() in stored]


async def test_nothing_seals_without_the_command(settings: Settings, in_kafka: Settings) -> None:
    """Other processes of an installation may be of an older release, or lack the key of the keys."""
    values = marked()
    for each in (settings, in_kafka):
        async with process(each, is_up=True) as (context, _):
            await write(context, *values)
            assert not context.apps.sealing.since_ms
    stored = on_disk(settings.data)
    assert all(value.encode() in stored for value in values)


async def test_a_record_that_a_state_has_marked_is_not_sealed_any_more(settings: Settings) -> None:
    """Otherwise the state's mark would differ from the log, as if that had gone back."""
    command = DeviceCommand(appkey="1000000001", token="t" * 32)
    made = NewRecord(*COMMANDS, b"k", command.SerializeToString())
    async with process(settings, is_up=True) as (context, _):
        await with_an_app(context)
        (marked_before,) = context.log.stored([made])
        await switch(context).seal(SealRequest())
        (marked_since,) = context.log.stored([made])
        assert marked_before == made != marked_since
        await context.log.append([marked_before, marked_since])
        reader = await context.log.open({COMMANDS: 0})
        records = await reader.read()
        await reader.close()
    assert [record.value for record in records] == [marked_before.value, marked_since.value]


async def test_a_process_that_learns_that_others_seal_waits_for_the_keys(settings: Settings) -> None:
    """Nothing that it has read meanwhile is taken for what it is not, and nothing is left out."""
    async with process(settings, is_up=True) as (context, keys):
        await with_an_app(context)
        await switch(context).seal(SealRequest())
        await write(context, *(values := marked()))
        assert keys.ring is not None
        late = SealedLog(context.log._log)  # type: ignore[attr-defined]
        late.stop()
        reader = await late.open({COMMANDS: 0})
        for _ in range(2):
            with pytest.raises(UnavailableError, match="has not the keys of persons"):
                await reader.read()
        with pytest.raises(UnavailableError, match="has not the keys of persons"):
            await late.append([NewRecord(*COMMANDS, b"k", b"")])
        late.use(Sealer(keys.ring))
        late.seal()
        assert decode((await reader.read())[0]).token == values[0]
        await reader.close()


async def test_a_process_without_the_keys_does_not_start_once_others_seal(settings: Settings, tmp_path: Path) -> None:
    async with process(settings, is_up=True) as (context, _):
        await with_an_app(context)
        await switch(context).seal(SealRequest())
        copy = PersonKeySet.held(KeyFiles(person_keys_directory(settings), read_only=True))
        await write(context, *marked())
        before = await tokens(context)
    copy.write_copy(tmp_path / "copy")
    directory = person_keys_directory(settings)
    directory.rename(tmp_path / "away")
    for is_up in (True, False):
        with pytest.raises(CarillonError, match="has not the keys of persons: put a copy"):
            async with process(settings, is_up=is_up):
                pass
    assert not directory.exists(), "other keys would open nothing"
    KeyFiles.create(directory)
    with pytest.raises(CarillonError, match="are not those with which this installation seals"):
        async with process(settings, is_up=True):
            pass
    directory.rename(tmp_path / "others")
    KeyFiles.fill(directory, PersonKeySet.read_copy(tmp_path / "copy"))
    async with process(settings, is_up=True) as (context, _):
        assert await tokens(context) == before


async def test_an_old_copy_opens_what_was_sealed_since(settings: Settings, tmp_path: Path) -> None:
    files = KeyFiles.create(tmp_path / "persons")
    PersonKeySet.held(files).write_copy(tmp_path / "copy")
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o600
    same = PersonKeySet.read_copy(tmp_path / "copy")
    assert same == PersonKeySet.held(files)
    (tmp_path / "copy").write_bytes((tmp_path / "copy").read_bytes()[:-1])
    with pytest.raises(KeyStoreError, match="damaged"):
        PersonKeySet.read_copy(tmp_path / "copy")
    with pytest.raises(KeyStoreError, match=r"damaged|no copy of keys"):
        PersonKeySet.read_copy(tmp_path / "persons" / "roots")


async def test_it_is_said_that_no_copy_was_made_until_one_was(settings: Settings) -> None:
    async with process(settings, is_up=True) as (context, _):
        await with_an_app(context)
        await switch(context).seal(SealRequest())
    with capture_logs() as lines:
        async with process(settings, is_up=True) as (context, _):
            await until_holds(lambda: any("no copy of the keys of persons" in line["event"] for line in lines))
            assert PERSON_KEYS_UNCOPIED._value.get() == 1
            await switch(context).note_copied(NoteKeysCopiedRequest())
            assert context.apps.sealing.copied_ms >= context.apps.sealing.since_ms > 0
    with capture_logs() as lines:
        async with process(settings, is_up=True) as (context, _):
            await until_holds(lambda: PERSON_KEYS_UNCOPIED._value.get() == 0)
            assert not [line for line in lines if "no copy" in line["event"]]


async def test_keys_in_a_topic_are_made_before_anything_is_sealed(in_kafka: Settings) -> None:
    values = marked()
    async with process(in_kafka, is_up=True) as (context, keys):
        await with_an_app(context)
        assert keys.ring is None
        made = await switch(context).seal(SealRequest(only_keys=True))
        assert (made.since_ms, keys.ring is not None) == (0, True)
        ring = keys.ring
        await switch(context).seal(SealRequest())
        await write(context, *values)
        assert await tokens(context) == [values[0]]
    stored = on_disk(in_kafka.data)
    assert not [value for value in values if value.encode() in stored]
    assert ring is not None
    async with process(in_kafka, "delivery") as (context, keys):
        assert keys.ring is not None
        assert keys.ring.fingerprint == ring.fingerprint
        assert await tokens(context) == [values[0]]


async def test_a_process_that_gets_the_keys_later_opens_then(in_kafka: Settings) -> None:
    """A reader without keys reads names, and goes on."""
    values = marked()
    other = Settings(data_dir=str(in_kafka.data / "other"), partitions=1, kafka_bootstrap="kafka:9092")
    async with process(in_kafka, is_up=True) as (context, _):
        await with_an_app(context)
        await switch(context).seal(SealRequest())
        await write(context, *values)
        log = SqliteLog(in_kafka.data / "log.db", TOPICS, read_only=True, partitions=1)
        assert await stored_person_keys(other, log) is None, "it has no key that opens the topic"
        held = await stored_person_keys(in_kafka, log)
        assert held is not None
        with pytest.raises(ConflictError, match="has keys of persons already"):
            await fill_topic(in_kafka, context.log, PersonKeySet.held(held))
        reader = await log.open({COMMANDS: 0})
        assert decode((await reader.read())[0]).token.startswith("~")
        await reader.close()
        await log.close()


async def test_a_key_that_one_process_destroys_is_gone_in_the_others(in_kafka: Settings) -> None:
    async with process(in_kafka, is_up=True) as (context, keys):
        await with_an_app(context)
        await switch(context).seal(SealRequest())
        assert keys.ring is not None
        ring, subject = keys.ring, keys.ring.subject("number", "1", "2", "3")
        beside = SealedLog(context.log)
        async with person_keys(in_kafka, beside, context.apps, context.clock, owns=False) as others:
            assert others.ring is not None
            other = others.ring
            other.cipher(subject)
            assert await asyncio.to_thread(ring.puncture, subject)
            await until_holds(lambda: other.is_punctured(subject))
            with pytest.raises(PuncturedError):
                other.cipher(subject)


async def test_a_record_follows_the_last_change_of_a_key_so_that_kafka_forgets_the_former_one(
    in_kafka: Settings,
) -> None:
    """Kafka compacts no segment that it appends to; a start goes on with what a kill interrupted."""

    async def until_followed(keys: PersonKeys, clock: ManualClock) -> None:
        topic, tenure = keys.topic, Tenure(None)
        assert topic is not None
        assert topic.changed_ms
        topic._clock = clock
        tenure.begin()
        service = asyncio.create_task(FormerKeys(topic, tenure, clock).run(asyncio.Event()))

        async def is_followed() -> bool:
            clock.move(60)
            return topic.changed_ms == 0

        await until(is_followed)
        last = await last_record(keys.log)
        assert decode(last).WhichOneof("fact") is None
        for _ in range(20):
            await asyncio.sleep(0)
            clock.move(3600)
        service.cancel()
        await asyncio.wait([service])
        assert await last_record(keys.log) == last, "one record is enough"

    async with process(in_kafka, is_up=True) as (context, keys):
        await with_an_app(context)
        await switch(context).seal(SealRequest())
        clock = ManualClock(context.clock.now_ms())
        await until_followed(keys, clock)
        assert keys.ring is not None
        topic = keys.topic
        assert topic is not None
        assert await asyncio.to_thread(keys.ring.puncture, keys.ring.subject("number", "1", "2", "3"))
        await until_holds(lambda: topic.changed_ms > 0)
    async with process(in_kafka, is_up=True) as (_, again):
        await until_followed(again, ManualClock(clock.now_ms() + 900_000))
    async with process(in_kafka, is_up=True) as (_, third):
        assert third.topic is not None
        assert (third.topic.changed_ms, third.topic.is_complete) == (0, True)


async def last_record(log: Log) -> Record:
    """Return the last record of the topic of keys."""
    end = (await log.ends([KEYS_PARTITION]))[KEYS_PARTITION]
    reader = await log.open({KEYS_PARTITION: end - 1})
    (record,) = await reader.read()
    await reader.close()
    return record


async def test_the_keys_are_wrapped_anew_when_the_master_key_changes(in_kafka: Settings) -> None:
    values = marked()
    async with process(in_kafka, is_up=True) as (context, keys):
        await with_an_app(context)
        await switch(context).seal(SealRequest())
        await write(context, *values)
        assert keys.topic is not None
        create_master(following := next_master_file(in_kafka.key_file))
        new = fingerprint_of(derive(read_masters(in_kafka.key_file)[1], OptionalPurpose.PERSONS))
        with pytest.raises(ConflictError, match="has not the new key"):
            keys.topic.check_has(bytes(16))
        assert await keys.topic.wrap_anew(new) == 4097
        assert await keys.topic.wrap_anew(new) == 0
        assert keys.topic.is_wrapped_anew
    former = in_kafka.key_file.read_bytes()
    following.replace(in_kafka.key_file)
    log = SqliteLog(in_kafka.data / "log.db", TOPICS, read_only=True, partitions=1)
    found = await stored_person_keys(in_kafka, log)
    assert found is not None
    assert found.names()
    in_kafka.key_file.write_bytes(former)
    found = await stored_person_keys(in_kafka, log)
    assert found is not None
    with pytest.raises(KeyStoreError, match="a key that this process does not have"):
        found.names()
    await log.close()


async def test_nobody_but_the_owner_of_a_key_reads_the_topic(in_kafka: Settings) -> None:
    async with process(in_kafka, is_up=True) as (context, keys):
        await with_an_app(context)
        await switch(context).seal(SealRequest())
        assert keys.topic is not None
        secrets_of = [keys.topic.names(), *(keys.topic.load(block)[4:] for block in range(100))]
    stored = on_disk(in_kafka.data)
    assert KEYS.name.encode() in stored
    assert not [each for each in secrets_of if each in stored]


# One place makes the logs of roles.

MAKERS = {"SqliteLog", "KafkaLog", "ArchivedLog", "SignedLog", "SealedLog", "open_log"}
MAY_MAKE = {
    "services/domain/role_context.py": "the place",
    "carillon/archive.py": "moves what is stored",
    "carillon/children/analytics.py": "readable_log makes its log of it",
    "carillon/children/console.py": "role_context makes its log of it",
    "carillon/commands/acls.py": "makes topics and users",
    "carillon/commands/backup.py": "log_with_keys makes its log of it",
    "carillon/commands/keys.py": "log_with_keys makes its log of it, and copies keys",
    "carillon/commands/status.py": "reads `instances` and `processes`",
    "carillon/commands/upgrade.py": "reads `processes`",
    "carillon/replay.py": "readable_log makes its log of it, and scratch logs",
}


def test_no_other_place_makes_the_log_of_a_role() -> None:
    """A log that does not seal appends tokens in clear, and one that does not open takes names for tokens."""
    found = set()
    for package in ("services", "edge", "console", "analytics", "carillon"):
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call):
                    called = node.func.value if isinstance(node.func, ast.Attribute) else node.func
                    if isinstance(called, ast.Name) and called.id in MAKERS:
                        found.add(file.relative_to(ROOT).as_posix())
    assert found == set(MAY_MAKE)


# The first start of an installation.


async def begin(context: RoleContext, settings: RegistrySettings, *, has_standbys: bool = False) -> int:
    """Run the service of a registry's first start; return since when the installation seals, 0 if it does not."""
    tenure: Any = SimpleNamespace(has_standbys=has_standbys, wait=AsyncMock())
    service = first_sealing(settings, context, switch(context), tenure)
    running = asyncio.create_task(service.run(ready := asyncio.Event()))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    assert ready.is_set()
    if has_standbys:
        await until_holds(lambda: bool(context.apps.sealing.since_ms))
    running.cancel()
    await asyncio.wait([running])
    return context.apps.sealing.since_ms


@pytest.fixture
def of_registry(settings: Settings) -> RegistrySettings:
    return RegistrySettings(data_dir=settings.data_dir, partitions=1)


async def test_a_new_installation_seals_before_it_is_ready(of_registry: RegistrySettings) -> None:
    token, alias, content = marked()
    async with process(of_registry, is_up=True) as (context, _):
        since_ms = await begin(context, of_registry)
        assert since_ms
        await write(context, token, alias, content)
        assert await begin(context, of_registry) == since_ms, "a second start changes nothing"
    stored = on_disk(of_registry.data)
    assert BROADCAST.encode() in stored
    assert not [value for value in (token, alias, content) if value.encode() in stored]


async def test_an_installation_that_was_used_or_is_not_to_seal_stays_as_it_is(of_registry: RegistrySettings) -> None:
    async with process(of_registry, is_up=True) as (context, _):
        assert not await begin(context, msgspec.structs.replace(of_registry, seal_new=False))
        await write(context, *marked())
        assert not await begin(context, of_registry), "a device has sent something"


async def test_an_installation_with_an_app_stays_as_it_is(of_registry: RegistrySettings) -> None:
    async with process(of_registry, is_up=True) as (context, _):
        await with_an_app(context)
        assert not await begin(context, of_registry)


async def test_with_kafka_it_seals_where_the_key_is_handed_out(of_registry: RegistrySettings, tmp_path: Path) -> None:
    with_kafka = msgspec.structs.replace(of_registry, kafka_bootstrap="kafka:9092")
    async with process(with_kafka, "registry") as (context, _):
        assert not await begin(context, with_kafka), "other processes may not have the key"
        file = str(tmp_path / "persons.key")
        handed_out = msgspec.structs.replace(with_kafka, persons_key_file=file)
        assert await begin(context, handed_out, has_standbys=True)
