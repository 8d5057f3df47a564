"""Changes of attributes are facts in `sessions`, and a device's record keeps what it was counted under before."""

import asyncio
from collections.abc import Sequence

import pytest

from protos.gateway.v1.sessions_pb2 import AttributeChange
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App
from protos.registry.v1.devices_pb2 import (
    REGISTRATION_AUTHORITY_CODE,
    REGISTRATION_AUTHORITY_KEY,
    REGISTRATION_AUTHORITY_TOKEN,
    AddTags,
    Attributes,
    Device,
    DeviceCommand,
    RegisterDevice,
    RegistrationAuthority,
    RemoveDevice,
    SetAttributes,
)
from services.domain.topics import DEVICES, SESSIONS, TOPICS, decode
from services.log.port import Log, NewRecord
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from services.registry.decide import FreeNumber, decide
from services.registry.settings import RegistrySettings
from services.registry.state import change_fact
from testkit.faults.crashing_log import KilledError
from testkit.waiting import until
from tests.services.registry.conftest import (
    BOUND_S,
    NOON_MS,
    RunningRegistry,
    Start,
    command,
    command_record,
    device_facts,
    records,
    register,
)
from tests.services.registry.test_crash import log_path

BEIJING = Attributes(region="北京市", app_version="1")
SHANGHAI = Attributes(region="上海市", app_version="2")
APP = App(appkey="1", platform=PLATFORM_ANDROID)


async def changes(log: Log) -> list[AttributeChange]:
    """Return every change in the log."""
    facts = [decode(record) for record in await records(log, SESSIONS.name)]
    return [fact.attributes_changed for fact in facts if fact.HasField("attributes_changed")]


def moved(app: App | str, token: str, attributes: Attributes = SHANGHAI) -> DeviceCommand:
    return command(app, token, at_ms=NOON_MS + 1, set_attributes=SetAttributes(attributes=attributes))


async def test_a_change_of_attributes_is_written_once_and_a_registration_is_none(registry: RunningRegistry) -> None:
    app = await registry.app()
    await registry.apply(register(app, "t", region="北京市", app_version="1"))
    await registry.apply(moved(app, "t", BEIJING), command(app, "t", add_tags=AddTags(tags=[1])))
    assert await changes(registry.log) == []
    (position,) = await registry.write(moved(app, "t"))
    await registry.peers.wait_applied([position])
    device = await registry.device(app.appkey, "t")
    assert device is not None
    (change,) = await changes(registry.log)
    assert change == AttributeChange(
        appkey=app.appkey,
        number=device.number,
        revision=position.offset + 1,
        time_ms=NOON_MS + 1,
        attributes=SHANGHAI,
    )
    assert device.attributes_revision == change.revision
    (kept,) = device.registrations
    assert (kept.number, kept.registered_ms, kept.attributes) == (device.number, NOON_MS, BEIJING)
    assert (await registry.verify()).equal


class PartialLog(SqliteLog):
    """A log of a process that is killed when `devices` has what it appends and `sessions` has not, as with Kafka."""

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        if all(each.topic != SESSIONS.name for each in new_records):
            return await super().append(new_records)
        await super().append([each for each in new_records if each.topic == DEVICES.name])
        raise KilledError


@pytest.mark.parametrize("goes_on", [False, True], ids=["nothing follows", "another change follows"])
async def test_a_change_that_a_kill_kept_from_the_log_is_written_by_the_next_start(
    start: Start, log: SqliteLog, settings: RegistrySettings, clock: ManualClock, goes_on: bool
) -> None:
    async with start() as registry:
        app = await registry.app()
        await registry.apply(register(app, "t", region="北京市"))
    await log.append([command_record(moved(app, "t"))])
    await log.close()
    partial = PartialLog(log_path(settings), TOPICS)
    killed = RunningRegistry(settings, partial, clock)
    await killed.start()
    done, _ = await asyncio.wait(killed.tasks, return_when=asyncio.FIRST_EXCEPTION, timeout=BOUND_S)
    assert [type(task.exception()) for task in done] == [KilledError]
    await killed.stop()
    assert await changes(partial) == []
    await partial.close()

    reopened = SqliteLog(log_path(settings), TOPICS)
    if goes_on:
        await reopened.append([command_record(moved(app, "t", Attributes(region="广东省")))])
    async with start(reopened) as again:
        await until(lambda: _has_regions(reopened, ["上海市", "广东省"] if goes_on else ["上海市"]))
        assert (await again.verify()).equal
    async with start(reopened) as later:
        assert (await later.verify()).equal
        assert len([fact for fact in await device_facts(reopened) if fact.device.token == "t"]) == 1
    await reopened.close()


async def _has_regions(log: Log, regions: list[str]) -> bool:
    """Return whether these are the changes, in order of their revisions as readers see them."""
    found: list[AttributeChange] = []
    for change in await changes(log):
        if not found or change.revision > found[-1].revision:
            found.append(change)
    return [change.attributes.region for change in found] == regions


def test_what_a_device_was_counted_under_has_no_model() -> None:
    device = Device(
        appkey="1", token="t", number=3, registered_ms=5, attributes=Attributes(region="北京市", model="X1")
    )
    device.registrations.add(number=2, registered_ms=4, attributes=Attributes(region="上海市", model="X0"))
    changed = decide(moved("1", "t", Attributes(region="广东省", model="X2")), device, APP, FreeNumber(0, 0), offset=7)
    assert changed is not None
    assert changed.attributes == Attributes(region="广东省", model="X2")
    assert [kept.attributes for kept in changed.registrations] == [
        Attributes(region="上海市"),
        Attributes(region="北京市"),
    ]
    fact = change_fact(changed, NOON_MS).message
    assert fact.attributes_changed.attributes == Attributes(region="广东省")


def registration(authority: RegistrationAuthority.ValueType, number: int, attributes: Attributes) -> DeviceCommand:
    what = RegisterDevice(platform=PLATFORM_ANDROID, authority=authority, proven_number=number, attributes=attributes)
    return command("1", "t", at_ms=NOON_MS + 2, register=what)


def test_the_record_keeps_the_registrations_of_all_its_numbers() -> None:
    def decided(what: DeviceCommand, device: Device | None, offset: int, free: int = 0) -> Device:
        found = decide(what, device, APP, FreeNumber(0, free), offset=offset)
        assert found is not None
        return found

    new = decided(register("1", "t", region="北京市", app_version="1"), None, 0)
    assert (new.attributes_revision, len(new.registrations)) == (0, 0)
    changed = decided(moved("1", "t"), new, 1)
    removed = decided(command("1", "t", remove=RemoveDevice()), changed, 2)
    assert (removed.attributes_revision, removed.registrations) == (2, changed.registrations)
    back = decided(registration(REGISTRATION_AUTHORITY_KEY, 0, SHANGHAI), removed, 3)
    assert (back.number, back.registered_ms, back.attributes_revision) == (0, NOON_MS + 2, 2)
    assert back.registrations == changed.registrations
    coded = decided(registration(REGISTRATION_AUTHORITY_CODE, 0, Attributes()), back, 4, free=5)
    assert (coded.number, coded.attributes, coded.attributes_revision) == (5, SHANGHAI, 0)
    gone = decided(command("1", "t", remove=RemoveDevice()), coded, 5)
    anew = decided(registration(REGISTRATION_AUTHORITY_TOKEN, 0, BEIJING), gone, 6, free=9)
    assert [(kept.number, kept.registered_ms, kept.attributes) for kept in anew.registrations] == [
        (0, NOON_MS, BEIJING),
        (5, NOON_MS + 2, SHANGHAI),
    ]
    assert (anew.number, anew.attributes, anew.attributes_revision) == (9, BEIJING, 0)
