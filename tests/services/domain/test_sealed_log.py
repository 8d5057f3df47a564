"""Sealed records: opened they are what was written, and without the keys they tell of nobody."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protos.accounts.v1.accounts_pb2 import DataRead, LogInFact
from protos.push.v1.push_pb2 import Aliases, Audience, Devices, Everyone, Filter, Message, PushCommand, SendPush, Tokens
from protos.registry.v1.apps_pb2 import AppFact
from protos.registry.v1.devices_pb2 import (
    AliasLost,
    Attributes,
    Device,
    DeviceCommand,
    DeviceFact,
    RevokeAllKeys,
    SetAlias,
)
from protos.registry.v1.erasures_pb2 import ErasureFact, PersonErased
from protos.runtime.v1.log_pb2 import Meta, Origin
from protos.scheduling.v1.scheduling_pb2 import CreateTask, TaskCommand
from services.domain.person_keys import KeyFiles, KeyRing
from services.domain.sealed_log import SealedLog
from services.domain.sealing import (
    FEW_DEVICES,
    MARK,
    SEALED,
    SEALED_TOPICS,
    Sealer,
    is_name,
    listed_devices,
    sealed_part,
)
from services.domain.signed_log import SignedLog
from services.domain.signing_keys import derive_signing_key
from services.domain.stored_values import Sort, sort_of
from services.domain.topics import (
    APPS,
    DEVICE_COMMANDS,
    DEVICES,
    ERASURES,
    LOG_INS,
    PUSH_COMMANDS,
    TASK_COMMANDS,
    TOPICS,
    decode,
    device_key,
)
from services.log.decoding import key_in_clear
from services.log.port import NewRecord, Partition, Record
from services.log.sqlite.log import SqliteLog
from testkit.persons import counted_keys, key_ring
from tests.services.domain.golden.write import VARIANTS, filled, kinds
from tests.services.extreme_values import extremes

T0_MS = 1_800_000_000_000
META = Meta(event_id=b"e" * 16, time_ms=T0_MS, writer="edge", origin=Origin(address="192.0.2.7", request_id="r"))
SECRET_TEXT = "Dinner with Bob"


class Sealed:
    """A log of one directory that seals, beside the log below it."""

    def __init__(self, directory: Path) -> None:
        self.keys = directory / "persons"
        self.ring = key_ring(self.keys)
        self.below = SqliteLog(directory / "log.sqlite", TOPICS)
        self.log = SealedLog(self.below, Sealer(self.ring), seals=True)

    def stored(self, topic: str, message: Any, partition: int = 0) -> Record:
        """Return the record of a message as it is stored."""
        (stored,) = self.log.stored([NewRecord(topic, partition, b"k", message.SerializeToString())])
        return Record(topic, partition, 0, b"k", stored.value)

    def read(self, record: Record) -> Any:
        return decode(self.log.opened(record))

    def erase(self, *subject: str) -> None:
        assert self.ring.puncture(self.ring.subject(*subject))

    def erase_named(self, kind: str, value: str, generation: int = 0) -> None:
        self.erase(kind, "1", self.ring.name(kind, "1", value), str(generation))


@pytest.fixture
def sealed(tmp_path: Path) -> Iterator[Sealed]:
    sealed = Sealed(tmp_path)
    yield sealed
    asyncio.run(sealed.below.close())


def push(audience: Audience) -> PushCommand:
    send = SendPush(msgid=7, id_count=3, appkey="1", audience=audience, request_json="{}")
    send.message.CopyFrom(Message(content=SECRET_TEXT))
    return PushCommand(meta=META, send=send)


def listed(*numbers: int) -> Audience:
    return Audience(
        devices=Devices(
            partitions=np.array([2] * len(numbers), "<u2").tobytes(),
            numbers=np.array(numbers, "<u4").tobytes(),
            id_offsets=np.array(range(len(numbers)), "<u4").tobytes(),
        )
    )


def every_record() -> Iterator[tuple[str, Any]]:
    """Yield records of every kind with every field, and with extreme numbers."""
    found = [(topic, extreme.message) for topic in TOPICS for extreme in extremes(topic, 3)]
    found += [(topic, filled(topic, kind, variant)) for topic, kind in kinds() for variant in range(VARIANTS)]
    for topic, message in found:
        message.meta.ClearField("sealed")
        yield topic, message


def sealed_values(message: Any) -> Iterator[Any]:
    """Yield what a message holds in fields of the sealed sorts, but for names."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            if not field.message_type.GetOptions().map_entry:
                for one in value if field.is_repeated else [value]:
                    yield from sealed_values(one)
        elif sort_of(field) in SEALED and not field.GetOptions().deprecated:
            yield from (one for one in (value if field.is_repeated else [value]) if not is_name(str(one)))


def test_every_record_is_read_as_it_was_written(sealed: Sealed) -> None:
    count = 0
    for topic, message in every_record():
        record = sealed.stored(topic, message, 3)
        count += sealed_part(record.value) is not None
        assert sealed.read(record) == message, topic
        (again,) = sealed.log.stored([NewRecord(topic, 3, b"k", record.value)])
        assert again.value == record.value, "a sealed record passes as it is"
    assert count > 500


STORED_LEFT = bytes.fromhex(
    "0a370a100000000000000000000000000000000010808081f5ac331a046564676522160a0276321a10303132333435363738"
    "39616263646566121f080310011a0131280332121a100a0202001204030000001a04000000003a00"
)
STORED_SEALED = bytes.fromhex(
    "f57365616c65643101b4ff8d5d4cb9d6fb9e17301edb818a3ccf000000fdbfa380ebed6752d39ce29ba3cccf05a24fb96949"
    "158f3b69cd83cddc100fe7386cb38bf69c9f5b89222e6d9b5a5a192731a4f67eea14ca0082920e9d16b206d30351be9ceab0"
    "261e3b5fd438a707b0dcd14da397656b0697e615dfd9cddd435e5f943656a96b1f59877cc4906087fec2980b2230c635e2c1"
    "eedf0036445cc4e53b53fed742f8615e0ba18a4a4932156ba1aed7210e2d79caf3b9f90d1b8e6b388265a470c380ecbec375"
    "b18f212832b015e531a8029f513f46ffdf951a1dc09c10f9dfef8e25a3ddb1b4cd56e8fdf8d72f5ba2b2e08fc3889ea7"
)


def test_a_record_of_the_first_day_is_read(tmp_path: Path) -> None:
    """It was written before any change of the code that seals, with keys that count up."""
    trailer = PushCommand(meta=Meta(sealed=STORED_SEALED)).SerializeToString()
    log = SealedLog(SqliteLog(tmp_path / "log.sqlite", TOPICS), Sealer(counted_keys(tmp_path / "counted")))
    read = decode(log.opened(Record(PUSH_COMMANDS.name, 0, 0, b"3", STORED_LEFT + trailer)))
    assert read.meta.origin.address == "192.0.2.7"
    assert read.send.message.content == "Your parcel arrives today between 14 and 16."
    assert read.send.message.extra == '{"order":"4711"}'
    assert read.send.request_json.startswith('{"audience":{"tokens":["0123456789abcdef')
    assert listed_devices(read.send) == [(2, 3)]


def test_nothing_personal_stays_in_what_is_stored(sealed: Sealed) -> None:
    """Broadcasts, and commands to all devices, are nobody's."""
    topics: set[str] = set()
    for topic, message in every_record():
        if topic not in SEALED_TOPICS or topic == PUSH_COMMANDS.name or getattr(message, "token", "t") == "":
            continue
        if "everyone" in str(message) or "filter {" in str(message):
            continue
        record = sealed.stored(topic, message, 3)
        found = list(sealed_values(decode(record)))
        if topic == DEVICES.name and message.WhichOneof("fact") == "revocations":
            found.remove(message.meta.origin.address)
        if topic == "sessions" and message.WhichOneof("fact") != "batch":
            continue
        assert found == [], (topic, message)
        topics.add(topic)
    assert topics == SEALED_TOPICS - {PUSH_COMMANDS.name}


def test_each_sealed_sort_is_in_a_sealed_topic(sealed: Sealed) -> None:
    assert APPS.name not in SEALED_TOPICS
    assert Sort.COUNTED not in SEALED
    unsealed = {
        topic for topic, message in every_record() if topic not in SEALED_TOPICS and list(sealed_values(message))
    }
    for topic in unsealed:
        values = {field.full_name for field in _personal(TOPICS[topic].envelope.DESCRIPTOR, set())}
        assert values == {"protos.runtime.v1.Origin.address"}, topic


def _personal(message: Any, known: set[str]) -> Iterator[Any]:
    known.add(message.full_name)
    for field in message.fields:
        if field.message_type is not None:
            if field.message_type.full_name not in known:
                yield from _personal(field.message_type, known)
        elif sort_of(field) in SEALED and not field.GetOptions().deprecated:
            yield field


@pytest.mark.parametrize("audience", [Audience(everyone=Everyone()), Audience(filter=Filter())], ids=["all", "filter"])
def test_broadcasts_stay_readable(sealed: Sealed, audience: Audience) -> None:
    command = push(audience)
    record = sealed.stored(PUSH_COMMANDS.name, command)
    assert record.value == command.SerializeToString()
    assert SECRET_TEXT.encode() in record.value


@pytest.mark.parametrize(("count", "is_lost"), [(1, True), (FEW_DEVICES, True), (FEW_DEVICES + 1, False)])
def test_a_push_to_few_devices_ends_with_one_of_them(sealed: Sealed, count: int, is_lost: bool) -> None:
    command = push(listed(*range(count)))
    record = sealed.stored(PUSH_COMMANDS.name, command)
    assert not {text for text in (SECRET_TEXT.encode(), b"192.0.2.7") if text in record.value}
    assert sealed.read(record) == command
    sealed.erase("number", "1", "2", str(count - 1))
    read = sealed.read(record)
    assert read.send.audience == command.send.audience
    assert (read.send.message.content, read.meta.origin.address) == (
        ("", "") if is_lost else (SECRET_TEXT, "192.0.2.7")
    )


def test_of_an_erased_device_its_number_and_counted_attributes_are_left(sealed: Sealed) -> None:
    device = Device(appkey="1", token="t", number=9, alias="alice", tags=[1], stags=["vip"])
    device.attributes.CopyFrom(Attributes(region="r", model="m"))
    device.alias_lost.CopyFrom(AliasLost(alias="old", to_token="other"))
    fact = DeviceFact(meta=META, device=device)
    record = sealed.stored(DEVICES.name, fact, 2)
    sealed.erase("number", "1", "2", "9")
    left = sealed.read(record).device
    assert (left.number, left.attributes, list(left.tags), list(left.stags)) == (9, Attributes(region="r"), [], [])
    assert left.token == "t", "which has a key of its own"
    sealed.erase_named("token", "t")
    sealed.erase_named("alias", "alice")
    left = sealed.read(record).device
    assert (left.token, left.alias) == (sealed.ring.name("token", "1", "t"), sealed.ring.name("alias", "1", "alice"))
    assert (left.alias_lost.alias, left.alias_lost.to_token) == ("old", "other")


def test_an_erased_token_that_comes_back_begins_anew(sealed: Sealed) -> None:
    command = DeviceCommand(meta=META, appkey="1", token="t", set_alias=SetAlias(alias="alice"))
    before = sealed.stored(DEVICE_COMMANDS.name, command)
    sealed.erase_named("token", "t")
    after = sealed.stored(DEVICE_COMMANDS.name, command)
    assert sealed.read(before).token == sealed.ring.name("token", "1", "t")
    assert sealed.read(after) == command
    sealed.erase_named("token", "t", generation=1)
    assert sealed.read(after).token == sealed.ring.name("token", "1", "t")


@pytest.mark.parametrize(
    ("topic", "made", "names"),
    [
        (
            TASK_COMMANDS.name,
            lambda values: TaskCommand(
                meta=META,
                create=CreateTask(
                    pushes=[
                        SendPush(appkey="2"),
                        SendPush(appkey="1", audience=Audience(tokens=Tokens(tokens=values))),
                    ]
                ),
            ),
            lambda read: read.create.pushes[1].audience.tokens.tokens,
        ),
        (
            LOG_INS.name,
            lambda values: LogInFact(meta=META, data_read=DataRead(appkey="1", tokens=values)),
            lambda read: read.data_read.tokens,
        ),
    ],
    ids=["a task", "a reading"],
)
def test_of_a_list_the_erased_tokens_are_names_at_their_places(
    sealed: Sealed, topic: str, made: Callable[[list[str]], Any], names: Callable[[Any], list[str]]
) -> None:
    tokens = ["token-one", "token-two", "token-one", "token-three"]
    record = sealed.stored(topic, made(tokens))
    assert not any(token.encode() in record.value for token in tokens)
    assert sealed.read(record) == made(tokens)
    sealed.erase_named("token", "token-one")
    name = sealed.ring.name("token", "1", "token-one")
    assert list(names(sealed.read(record))) == [name, "token-two", name, "token-three"]


def test_a_token_in_a_key_is_stored_as_its_name(sealed: Sealed) -> None:
    command = DeviceCommand(meta=META, appkey="1", token="t")
    fact = DeviceFact(meta=META, device=Device(appkey="1", token="t", number=9))
    name = sealed.ring.name("token", "1", "t")
    for topic, message in ((DEVICE_COMMANDS.name, command), (DEVICES.name, fact)):
        (stored,) = sealed.log.stored([NewRecord(topic, 7, device_key("1", "t"), message.SerializeToString())])
        assert (stored.key, stored.partition) == (device_key("1", name), 7)
        record = sealed.log.opened(Record(topic, 7, 0, stored.key, stored.value))
        assert record.key == stored.key, "marks are of what is stored"
        assert key_in_clear(TOPICS, record, decode(record)) == device_key("1", "t")
    of_all = DeviceCommand(meta=META, appkey="1", revoke_all_keys=RevokeAllKeys())
    announcement = DeviceFact(meta=META)
    for topic, message in ((DEVICE_COMMANDS.name, of_all), (DEVICES.name, announcement)):
        record = sealed.stored(topic, message)
        assert (record.key, key_in_clear(TOPICS, record, message)) == (b"k", b"k")
    sealed.erase_named("token", "t")
    (stored,) = sealed.log.stored([NewRecord(DEVICES.name, 7, device_key("1", "t"), fact.SerializeToString())])
    assert stored.key == device_key("1", name), "the same for one that comes back"
    empty = NewRecord(DEVICES.name, 7, device_key("1", "t"), b"")
    assert list(sealed.log.stored([empty])) == [empty]


def test_aliases_of_a_push_are_sealed_each(sealed: Sealed) -> None:
    audience = listed(4)
    audience.devices.aliases.extend(["alice", "bob"])
    record = sealed.stored(PUSH_COMMANDS.name, push(audience))
    sealed.erase_named("alias", "alice")
    read = sealed.read(record)
    assert list(read.send.audience.devices.aliases) == [sealed.ring.name("alias", "1", "alice"), "bob"]
    assert read.send.message.content == SECRET_TEXT
    task = TaskCommand(
        meta=META, create=CreateTask(pushes=[SendPush(appkey="1", audience=Audience(aliases=Aliases(aliases=["al"])))])
    )
    assert sealed.read(sealed.stored(TASK_COMMANDS.name, task)) == task


async def test_what_nobody_can_open_is_read_without_it(tmp_path: Path) -> None:
    sealed = Sealed(tmp_path)
    command = DeviceCommand(meta=META, appkey="1", token="t", set_alias=SetAlias(alias="alice"))
    await sealed.log.append([NewRecord(DEVICE_COMMANDS.name, 0, b"k", command.SerializeToString())])
    stranger = SealedLog(sealed.below, Sealer(key_ring(tmp_path / "others")), seals=False)
    for log, token in ((sealed.log, "t"), (stranger, sealed.ring.name("token", "1", "t"))):
        last = await log.last(Partition(DEVICE_COMMANDS.name, 0))
        reader = await log.open({Partition(DEVICE_COMMANDS.name, 0): 0})
        assert last is not None
        assert [decode(record).token for record in [last, *await reader.read()]] == [token, token]
        await reader.close()
    unsealed = SealedLog(sealed.below, Sealer(sealed.ring), seals=False)
    (stored,) = unsealed.stored([NewRecord(DEVICE_COMMANDS.name, 0, b"k", command.SerializeToString())])
    assert stored.value == command.SerializeToString(), "a log that does not seal yet"
    await sealed.below.close()


async def test_signed_records_are_sealed_inside_the_signature(tmp_path: Path) -> None:
    sealed = Sealed(tmp_path)
    key = derive_signing_key(bytes(32), "accounts")
    refused: list[Record] = []
    signed = SignedLog(
        sealed.below, {"accounts": key}, {"accounts": [key.public_key()]}, lambda record, error: refused.append(record)
    )
    log = SealedLog(signed, Sealer(sealed.ring), seals=True)
    fact = LogInFact(meta=META, data_read=DataRead(appkey="1", tokens=["one"], name="alice"))
    await log.append([NewRecord(LOG_INS.name, 0, b"k", fact.SerializeToString())])
    reader = await log.open({Partition(LOG_INS.name, 0): 0})
    (record,) = await reader.read()
    assert refused == []
    assert decode(record).data_read == fact.data_read
    assert not any(text in record.value for text in (b"one", b"alice", b"192.0.2.7"))
    await reader.close()
    await sealed.below.close()


@pytest.mark.parametrize("damage", ["", "cut", "flipped", "inside"])
def test_damaged_and_forged_seals_are_none(sealed: Sealed, damage: str) -> None:
    command = DeviceCommand(meta=META, appkey="1", token="t")
    record = sealed.stored(DEVICE_COMMANDS.name, command)
    blob = sealed_part(record.value)
    assert blob is not None
    match damage:
        case "cut":
            assert [
                part for end in range(len(MARK), len(blob)) for part in Sealer(sealed.ring).opened("x", blob[:end])
            ] == []
        case "flipped":
            flipped = blob[:-1] + bytes([blob[-1] ^ 1])
            parts = Sealer(sealed.ring).opened(DEVICE_COMMANDS.name, flipped)
            assert len(parts) < len(Sealer(sealed.ring).opened(DEVICE_COMMANDS.name, blob))
        case "inside":
            inner = AppFact(meta=Meta(signature=blob)).SerializeToString()
            assert sealed_part(inner) is None
            assert sealed_part(MARK) is None
        case _:
            assert Sealer(sealed.ring).opened(DEVICES.name, blob) == (), "of another topic"


def test_keys_are_those_of_one_installation(tmp_path: Path) -> None:
    assert isinstance(key_ring(tmp_path / "a"), KeyRing)
    assert key_ring(tmp_path / "a").subject("x") == key_ring(tmp_path / "a").subject("x")


def test_keys_that_come_later_are_without_those_of_erased_persons(sealed: Sealed) -> None:
    """A process reads `erasures` before it has its keys; a restored copy of these may have the destroyed ones."""
    device = Device(appkey="1", token="t", partition=2, number=9)
    record = sealed.stored(DEVICES.name, DeviceFact(meta=META, device=device), 2)
    fact = ErasureFact(
        erased=PersonErased(
            subjects=[sealed.ring.subject("token", "1", sealed.ring.name("token", "1", "t"), "0"), b"short"]
        )
    )
    log = SealedLog(sealed.below)
    for value in (b"\xff", fact.SerializeToString()):
        log.opened(Record(ERASURES.name, 0, 0, b"id", value))
    log.use(Sealer(KeyRing(KeyFiles(sealed.keys, read_only=True))))
    assert decode(log.opened(record)).device.token == sealed.ring.name("token", "1", "t")
    assert sealed.read(record).device.token == "t"
