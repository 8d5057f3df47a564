"""Erasure of persons: stubs take the place of devices, in the live state as in one built again from the log."""

import json
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from console.devices.erasures import NOT_FORGOTTEN
from protos.registry.v1.apps_pb2 import CHANNEL_FCM, App
from protos.registry.v1.devices_pb2 import AddTags, ClearAddress, Device, RemoveDevice, SetAddress
from protos.registry.v1.erasures_pb2 import ErasureFact
from protos.registry.v1.registry_pb2 import ErasePersonRequest
from protos.runtime.v1.log_pb2 import Meta, Origin, Position
from services.domain.addresses import address_hash
from services.domain.person_keys import KeyRing
from services.domain.recorded_reasons import FixedReason
from services.domain.sealed_log import SealedLog
from services.domain.sealing import Sealer, is_name, stub_token
from services.domain.topics import DEVICE_COMMANDS, DEVICES, ERASURES, decode
from services.errors import ConflictError, InputError, NotFoundError
from services.log.port import Log, NewRecord, Record
from services.log.sqlite.log import SqliteLog
from services.registry.erasures import person_erased
from services.registry.resealing import PROGRESS_FILE
from testkit.persons import applied_erasures, key_ring
from testkit.waiting import until, until_holds
from tests.services.registry.command import Carillon
from tests.services.registry.conftest import (
    NOON_MS,
    RunningRegistry,
    Start,
    alias_cleared,
    command,
    position_of_fact,
    records,
    register,
    set_alias,
)

CANARY = "canary-7f3a"
TOKEN, ALIAS = f"{CANARY}-token", f"{CANARY}-alias"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys" / "persons"


@pytest.fixture
def ring(keys: Path) -> KeyRing:
    return key_ring(keys)


@pytest.fixture
def sealed(log: SqliteLog, ring: KeyRing) -> SealedLog:
    return SealedLog(log, Sealer(ring), seals=True)


@pytest.fixture
async def registry(start: Start, sealed: SealedLog) -> AsyncIterator[RunningRegistry]:
    async with start(sealed) as running:
        yield running


async def with_person(registry: RunningRegistry) -> App:
    """Return an app with two devices of a person, and one of another."""
    app = await registry.app()
    for token in (TOKEN, f"{TOKEN}-2"):
        await registry.apply(
            register(app, token, model=f"{CANARY}-model", brand="Acme"),
            set_alias(app, token, ALIAS),
            command(app, token, add_tags=AddTags(tags=[7])),
            command(app, token, set_address=SetAddress(channel=CHANNEL_FCM, address=f"{CANARY}-{token}")),
        )
    await registry.apply(
        register(app, "other"),
        set_alias(app, "other", "somebody"),
        command(app, "other", set_address=SetAddress(channel=CHANNEL_FCM, address="kept")),
    )
    return app


async def erase(registry: RunningRegistry, app: App, alias: str = "", token: str = "") -> str:
    """Erase a person; return the id of the erasure once the registry has applied the stubs."""
    origin = Origin(interface="console", actor="user/1")
    before = len(await stubs(registry.log))
    request = ErasePersonRequest(appkey=app.appkey, origin=origin)
    if alias:
        request.alias = alias
    else:
        request.token = token
    answer = await registry.stub.ErasePerson(request)
    await stubs_applied(registry, before + answer.devices)
    return answer.erasure_id


async def stubs(log: Log) -> list[Record]:
    found = await records(log, DEVICES.name)
    return [record for record in found if decode(record).device.removed_reason == FixedReason.ERASED]


async def stubs_applied(registry: RunningRegistry, count: int) -> list[Device]:
    """Wait until this many stubs are in the log, and the registry has applied them; return them."""

    async def written() -> list[Record] | None:
        found = await stubs(registry.log)
        return found if len(found) >= count else None

    found = await until(written)
    await registry.peers.wait_applied(
        [Position(topic=record.topic, partition=record.partition, offset=record.offset) for record in found]
    )
    return [decode(record).device for record in found]


def state_bytes(registry: RunningRegistry) -> bytes:
    """Return all bytes of the files of the state."""
    return b"".join(path.read_bytes() for path in registry.settings.state_dir("registry").iterdir())


async def purged(registry: RunningRegistry, erasures: int) -> None:
    """Wait until the files have nothing left of this many erasures."""

    async def is_purged() -> bool:
        registry.clock.move(registry.settings.erasure_batch_s)
        return applied_erasures("registry", "files") >= erasures

    await until(is_purged)


async def test_of_an_erased_person_stubs_are_left(registry: RunningRegistry, ring: KeyRing) -> None:
    app = await with_person(registry)
    device = await registry.device(app.appkey, TOKEN)
    assert device is not None
    assert CANARY.encode() in state_bytes(registry)
    erasure_id = await erase(registry, app, alias=ALIAS)
    await until_holds(lambda: applied_erasures("registry", "stubs") == 1)
    assert applied_erasures("registry", "files") == 0
    await purged(registry, 1)
    assert await registry.device(app.appkey, TOKEN) is None
    assert await registry.alias(app.appkey, ALIAS) == []
    assert len(await registry.alias(app.appkey, "somebody")) == 1
    left = {stub.number: stub for stub in await stubs_applied(registry, 2) if stub.partition == device.partition}
    stub = left[device.number]
    name = ring.name("token", app.appkey, TOKEN)
    assert (stub.token, stub.alias, list(stub.tags), list(stub.addresses)) == (
        stub_token(name, device.number),
        "",
        [],
        [],
    )
    assert (stub.attributes.brand, stub.attributes.model, stub.removed_ms) == ("Acme", "", NOON_MS)
    assert device.number in registry.apps.revoked(app.appkey, device.partition)
    (fact,) = [decode(record) for record in await records(registry.log, ERASURES.name, 1)]
    assert (fact.erased.erasure_id, fact.meta.origin.actor) == (erasure_id, "user/1")
    assert CANARY.encode() not in fact.SerializeToString()


async def test_the_live_state_equals_one_rebuilt_and_has_no_value_of_the_person(registry: RunningRegistry) -> None:
    app = await with_person(registry)
    await erase(registry, app, alias=ALIAS)
    assert (await registry.verify()).equal

    await purged(registry, 1)
    assert CANARY.encode() not in state_bytes(registry)
    stored = [
        *await records(registry.log, DEVICES.name),
        *await records(registry.log, DEVICE_COMMANDS.name),
    ]
    assert len(stored) > 12
    assert not [record for record in stored if CANARY.encode() in record.value]


async def test_no_record_key_names_the_person_once_devices_are_under_names(
    registry: RunningRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that removes the one under the former key would bring the token into the log, on Kafka for days."""
    appended: list[NewRecord] = []
    append = SqliteLog.append

    async def noted(log: SqliteLog, new_records: Sequence[NewRecord]) -> list[int]:
        appended.extend(new_records)
        return await append(log, new_records)

    app = await with_person(registry)
    monkeypatch.setattr(SqliteLog, "append", noted)
    await erase(registry, app, token=TOKEN)
    assert [each for each in appended if TOKEN.encode() in each.key], "it removes a record of before sealing"
    (registry.settings.state_dir("registry") / PROGRESS_FILE).write_text("[null, true]")
    appended.clear()
    await erase(registry, app, token=f"{TOKEN}-2")
    assert appended
    assert not [each for each in appended if CANARY.encode() in each.key + each.value]


async def test_the_same_token_begins_anew_and_can_be_erased_again(registry: RunningRegistry) -> None:
    app = await with_person(registry)
    first = await registry.device(app.appkey, f"{TOKEN}-2")
    await erase(registry, app, alias=ALIAS)
    await registry.apply(register(app, f"{TOKEN}-2", NOON_MS + 1), set_alias(app, f"{TOKEN}-2", ALIAS, NOON_MS + 2))
    again = await registry.device(app.appkey, f"{TOKEN}-2")
    assert first is not None
    assert again is not None
    assert (again.number > first.number, again.alias) == (True, ALIAS)
    assert (await registry.verify()).equal
    await erase(registry, app, token=f"{TOKEN}-2")
    assert await registry.alias(app.appkey, ALIAS) == []
    assert (await registry.verify()).equal


async def test_an_alias_of_another_device_too_stays(registry: RunningRegistry) -> None:
    app = await with_person(registry)
    await erase(registry, app, token=TOKEN)
    assert [device.token for device in await registry.alias(app.appkey, ALIAS)] == [f"{TOKEN}-2"]
    assert (await registry.verify()).equal


async def test_a_removed_device_and_a_dead_address_are_erased(registry: RunningRegistry) -> None:
    app = await with_person(registry)
    hash_ = address_hash(CHANNEL_FCM, f"{CANARY}-{TOKEN}")
    await registry.apply(
        command(app, TOKEN, clear_address=ClearAddress(channel=CHANNEL_FCM, only_hash=hash_, dead_reason="GONE")),
        command(app, f"{TOKEN}-2", remove=RemoveDevice(reason="gone")),
    )
    for token in (TOKEN, f"{TOKEN}-2"):
        await erase(registry, app, token=token)
    assert (await registry.verify()).equal


async def test_the_next_start_completes_what_a_kill_interrupted(start: Start, sealed: SealedLog, keys: Path) -> None:
    async with start(sealed) as registry:
        app = await with_person(registry)
        device = await registry.device(app.appkey, TOKEN)
    assert device is not None
    fact = ErasureFact(meta=Meta(time_ms=NOON_MS), erased=person_erased(sealed.sealer, app.appkey, [device], []))
    await sealed.append([NewRecord(ERASURES.name, 0, b"id", fact.SerializeToString())])
    async with start(sealed) as again:
        await stubs_applied(again, 1)
        assert await again.device(app.appkey, TOKEN) is None
        assert (await again.verify()).equal
        subjects = fact.erased.subjects
        await until_holds(lambda: all(key_ring(keys).is_punctured(subject) for subject in subjects))
    async with start(sealed) as third:
        assert len(await stubs(third.log)) == 1
        await until_holds(lambda: applied_erasures("registry", "files") == 1)
        assert not re.search(rf"{TOKEN}(?!-2)".encode(), state_bytes(third)), "the other device is not erased"


async def test_a_repetition_under_the_same_id_is_the_same_erasure(registry: RunningRegistry) -> None:
    app = await with_person(registry)
    request = ErasePersonRequest(appkey=app.appkey, alias=ALIAS, erasure_id="00112233445566ff")
    first = await registry.stub.ErasePerson(request)
    again = await registry.stub.ErasePerson(request)
    assert (first.erasure_id, first.devices) == (request.erasure_id, 2)
    await stubs_applied(registry, 2)
    assert first == again == await registry.stub.ErasePerson(request)
    assert len(await records(registry.log, ERASURES.name, 1)) == 1
    with pytest.raises(InputError):
        await registry.stub.ErasePerson(ErasePersonRequest(appkey=app.appkey, alias=ALIAS, erasure_id="an id"))


async def test_nobody_is_erased_where_nothing_is_sealed(
    start: Start, sealed: SealedLog, log: SqliteLog, ring: KeyRing
) -> None:
    async with start(sealed) as registry:
        app = await with_person(registry)
        with pytest.raises(NotFoundError):
            await erase(registry, app, token="unknown")
    async with start(log) as unsealed:
        with pytest.raises(ConflictError, match="does not seal"):
            await erase(unsealed, app, token=TOKEN)
    async with start(SealedLog(log, Sealer(ring), seals=False)) as opening:
        with pytest.raises(ConflictError, match="does not seal"):
            await erase(opening, app, token=TOKEN)
    assert not await records(log, ERASURES.name, 1)


async def test_the_command_erases_and_says_what_is_left(registry: RunningRegistry, carillon: Carillon) -> None:
    app = await with_person(registry)
    given = ("erase", "--app", app.appkey, "--alias", ALIAS)
    assert (await carillon(*given, "--token", TOKEN, "--yes", group="person")).code == 2
    assert (await carillon(*given, group="person")).code == 1, "nobody confirms it"
    assert await registry.device(app.appkey, TOKEN) is not None
    done = await carillon(*given, "--yes", "--json", group="person")
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    assert answer["devices"] == 2
    assert answer["not_forgotten"] == list(NOT_FORGOTTEN)
    await stubs_applied(registry, 2)
    assert await registry.device(app.appkey, TOKEN) is None
    again = await carillon(*given, "--yes", group="person")
    assert (again.code, CANARY in again.out) == (1, False)


async def test_records_of_other_devices_forget_the_token_and_the_alias(registry: RunningRegistry) -> None:
    """An alias has ten devices at most, an address one; who loses one remembers to whom."""
    app = await with_person(registry)
    for number in range(1, 11):
        token = f"{CANARY}-{number}"
        await registry.apply(register(app, token, NOON_MS + number), set_alias(app, token, ALIAS, NOON_MS + number))
    shared = SetAddress(channel=CHANNEL_FCM, address="kept")
    await registry.apply(command(app, TOKEN, set_address=shared, at_ms=NOON_MS + 50))
    await position_of_fact(registry.log, lambda device: device.token == "other" and bool(device.addresses_lost))
    await alias_cleared(registry.log, TOKEN)
    await erase(registry, app, alias=ALIAS)

    async def forgets_alias() -> bool:
        left = await registry.device(app.appkey, TOKEN)
        return left is not None and is_name(left.alias_lost.alias) and is_name(left.alias_lost.to_token)

    await until(forgets_alias)
    assert (await registry.verify()).equal
    await erase(registry, app, token=TOKEN)

    async def forgets_token() -> bool:
        left = await registry.device(app.appkey, "other")
        return left is not None and is_name(left.addresses_lost[0].to_token)

    await until(forgets_token)
    assert (await registry.verify()).equal
