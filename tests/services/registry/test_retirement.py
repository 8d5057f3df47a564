"""Retirement: silent devices are removed at a bounded rate, and come back as they were when they show life."""

import asyncio
from pathlib import Path

import msgspec
import pytest
import structlog

from protos.gateway.v1.sessions_pb2 import (
    SESSION_EVENT_KIND_APP_OPENED,
    SESSION_EVENT_KIND_CLOSED,
    SESSION_EVENT_KIND_OPENED,
)
from protos.registry.v1.apps_pb2 import CHANNEL_FCM, PLATFORM_ANDROID, PLATFORM_IOS, App, Platform
from protos.registry.v1.devices_pb2 import (
    REGISTRATION_AUTHORITY_KEY,
    AddStags,
    AddTags,
    Attributes,
    BeginSession,
    Device,
    RegisterDevice,
    RemoveDevice,
    RevokeKey,
    SetAddress,
    SetAttributes,
)
from protos.registry.v1.registry_pb2 import ListInvalidTokensRequest
from services.domain.settings import SettingsError
from services.domain.topics import DEVICES, TOPICS
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from services.process.metrics import SILENT_SHARE
from services.registry import retirement
from services.registry.retirement import RetirementWorker, retirements_left
from services.registry.rules import device_fact
from services.registry.settings import RegistrySettings
from testkit.faults.crashing_log import KilledError
from testkit.waiting import until
from tests.services.registry.conftest import (
    BOUND_S,
    NOON_MS,
    RunningRegistry,
    Start,
    clear_alias,
    command,
    device_facts,
    register,
    session_record,
    set_alias,
)
from tests.services.registry.test_crash import CrashOnTopicLog

DAY_S = 86_400
DAYS = 270


@pytest.fixture
def settings(tmp_path: Path) -> RegistrySettings:
    """Return settings with which the registry retires nothing by itself: the tests make the passes."""
    return RegistrySettings(data_dir=str(tmp_path), partitions=4, device_days=0)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retirement, "PAGE_MS", 0)
    monkeypatch.setattr(retirement, "PAGE", 7)


def worker_of(registry: RunningRegistry) -> RetirementWorker:
    (running,) = (service for service in registry.role.services if isinstance(service, RetirementWorker))
    return RetirementWorker(running._follower, running._devices, registry.clock, DAYS)


async def make_pass(registry: RunningRegistry) -> None:
    await worker_of(registry).survey_and_retire(asyncio.Event())


async def opened(registry: RunningRegistry, *devices: Device) -> None:
    for device in devices:
        await registry.report(device, SESSION_EVENT_KIND_OPENED, registry.clock.now_ms())


async def found(registry: RunningRegistry, app: App, token: str) -> Device:
    device = await registry.device(app.appkey, token)
    assert device is not None
    return device


async def silent_and_lively(registry: RunningRegistry, silent: int = 1, lively: int = 1) -> tuple[App, list[str]]:
    """Make an app with devices that were last seen at their registration, and others that are active after 300 days."""
    app = await registry.app()
    tokens = [f"silent-{number}" for number in range(silent)]
    others = [f"lively-{number}" for number in range(lively)]
    await registry.apply(*(register(app, token) for token in (*tokens, *others)))
    registry.clock.move(300 * DAY_S)
    await opened(registry, *[await found(registry, app, token) for token in others])
    return app, tokens


async def registered(registry: RunningRegistry, app: App, tokens: list[str]) -> int:
    return sum(number >= 0 for number in await registry.numbers(app.appkey, tokens))


async def test_a_silent_device_is_removed_and_comes_back_as_it_was_when_it_connects(registry: RunningRegistry) -> None:
    app, (token,) = await silent_and_lively(registry)
    now_ms = registry.clock.now_ms()
    await registry.apply(
        set_alias(app, token, "alice", NOON_MS),
        command(app, token, add_tags=AddTags(tags=[4])),
        command(app, token, add_stags=AddStags(stags=["news"])),
    )
    before = await found(registry, app, token)
    await make_pass(registry)
    assert await registry.device(app.appkey, token) is None
    await until(lambda: _has_alias(registry, app, []))
    (fact,) = [each for each in await device_facts(registry.log) if each.device.removed_ms]
    gone = fact.device
    assert (gone.removed_ms, gone.removed_reason, gone.silent_since_ms) == (now_ms, "silent", NOON_MS)
    assert (fact.meta.time_ms, len(fact.meta.event_id), fact.meta.writer) == (now_ms, 16, "registry")
    assert (await registry.verify()).equal

    registry.clock.move(DAY_S)
    await registry.report(before, SESSION_EVENT_KIND_OPENED, registry.clock.now_ms())
    await until(lambda: _exists(registry, app, token))
    after = await found(registry, app, token)
    assert after.registered_again_ms == registry.clock.now_ms()
    after.ClearField("registered_again_ms")
    assert after == before
    await until(lambda: _has_alias(registry, app, [token]))
    assert (await registry.verify()).equal
    await make_pass(registry)
    assert await registered(registry, app, [token]) == 1, "it has shown life just now"


async def _exists(registry: RunningRegistry, app: App, token: str) -> bool:
    return await registry.device(app.appkey, token) is not None


async def _has_alias(registry: RunningRegistry, app: App, tokens: list[str]) -> bool:
    """Say whether alice has these devices. The index follows the facts, which a pass does not wait for."""
    return [device.token for device in await registry.alias(app.appkey, "alice")] == tokens


async def test_each_sign_of_life_counts(registry: RunningRegistry) -> None:
    app, (silent, *tokens) = await silent_and_lively(registry, silent=6)
    at_ms = registry.clock.now_ms() - (DAYS - 3) * DAY_S * 1000
    devices = [await found(registry, app, token) for token in tokens]
    await registry.report(devices[0], SESSION_EVENT_KIND_OPENED, at_ms)
    await registry.report(devices[1], SESSION_EVENT_KIND_APP_OPENED, at_ms)
    address = SetAddress(channel=CHANNEL_FCM, address="a")
    await registry.apply(
        set_alias(app, tokens[2], "bob", at_ms),
        command(app, tokens[3], at_ms=at_ms, set_address=address),
        register(app, "new", at_ms),
    )
    await registry.report(devices[4], SESSION_EVENT_KIND_CLOSED, at_ms)
    await make_pass(registry)
    registry.clock.move(DAY_S + 1)
    await opened(registry, await found(registry, app, "lively-0"))
    await make_pass(registry)
    assert [await registered(registry, app, [each]) for each in (silent, *tokens[:4], "new")] == [0, 1, 1, 1, 1, 1]


async def test_an_ios_token_is_removed_only_if_the_device_has_reported_something_itself(
    registry: RunningRegistry,
) -> None:
    app = await registry.app(PLATFORM_IOS)
    what = RegisterDevice(platform=PLATFORM_IOS)
    tokens = ["aa" * 32, "bb" * 32, "cc" * 32]
    await registry.apply(*(command(app, token, register=what) for token in tokens))
    await registry.report(await found(registry, app, tokens[1]), SESSION_EVENT_KIND_APP_OPENED, NOON_MS + 1)
    registry.clock.move(600 * DAY_S)
    await opened(registry, await found(registry, app, tokens[2]))
    await make_pass(registry)
    assert [await registered(registry, app, [token]) for token in tokens] == [1, 0, 1]
    listed = await registry.stub.ListInvalidTokens(ListInvalidTokensRequest(appkey=app.appkey, limit=9))
    assert list(listed.tokens) == [], "Apple has not refused it"


async def test_at_most_one_percent_of_an_app_is_removed_within_a_day_over_restarts(
    start: Start, settings: RegistrySettings
) -> None:
    async with start() as registry:
        app, tokens = await silent_and_lively(registry, silent=140, lively=20)
        lively = await found(registry, app, "lively-0")
        await make_pass(registry)
        await make_pass(registry)
        assert await registered(registry, app, tokens) == 138
    async with start() as registry:
        await make_pass(registry)
        assert await registered(registry, app, tokens) == 138
        for left in (136, 134):
            registry.clock.move(DAY_S + 1)
            await opened(registry, lively)
            await make_pass(registry)
            assert await registered(registry, app, tokens) == left
        assert (await registry.verify()).equal


@pytest.mark.parametrize(
    ("registered_now", "lately", "left"), [(0, 0, 0), (1, 0, 1), (99, 1, 0), (100, 0, 1), (101, 0, 2), (990, 10, 0)]
)
def test_the_bound_of_a_day_is_one_percent_and_at_least_one(registered_now: int, lately: int, left: int) -> None:
    assert retirements_left(registered_now, lately) == left


async def test_nothing_is_removed_where_no_device_of_the_app_shows_life(registry: RunningRegistry) -> None:
    """So it is after the clock jumped ahead by a year, and where the log was restored without the latest sessions."""
    app, tokens = await silent_and_lively(registry, silent=3, lively=3)
    registry.clock.move(365 * DAY_S)
    facts = len(await device_facts(registry.log))
    with structlog.testing.capture_logs() as logs:
        await make_pass(registry)
    assert [(entry["log_level"], entry["appkey"], entry["silent"]) for entry in logs] == [("warning", app.appkey, 6)]
    assert len(await device_facts(registry.log)) == facts
    assert SILENT_SHARE.labels(app.appkey)._value.get() == 1
    registry.clock.move(-365 * DAY_S)
    await make_pass(registry)
    assert await registered(registry, app, tokens) == 2, "with the right clock one is due"


async def test_a_device_that_changes_something_over_its_connection_is_back_before_the_change(
    registry: RunningRegistry,
) -> None:
    app, tokens = await silent_and_lively(registry, silent=2, lively=150)
    await make_pass(registry)
    assert await registered(registry, app, tokens) == 0
    now_ms = registry.clock.now_ms()
    begin = command(app, tokens[0], at_ms=now_ms, begin_session=BeginSession())
    named = Attributes(brand="Acme")
    hello = command(app, tokens[1], at_ms=now_ms, set_attributes=SetAttributes(attributes=named))
    (position, _) = await registry.write(begin, hello)
    change = command(app, tokens[0], at_ms=now_ms, add_tags=AddTags(tags=[7]))
    change.session = position.offset + 1
    await registry.apply(change)
    assert (await found(registry, app, tokens[0])).tags == [7]
    assert (await found(registry, app, tokens[1])).attributes.brand == "Acme"
    await make_pass(registry)
    assert await registered(registry, app, tokens) == 2


@pytest.mark.parametrize("platform", [PLATFORM_ANDROID, PLATFORM_IOS])
async def test_a_device_over_http_comes_back_by_a_hello_with_its_key(
    registry: RunningRegistry, platform: "Platform.ValueType"
) -> None:
    app = await registry.app(platform)
    token, other = "aa" * 32, "bb" * 32
    for each in (token, other):
        await registry.apply(command(app, each, register=RegisterDevice(platform=platform)))
    await registry.apply(set_alias(app, token, "alice", NOON_MS))
    await registry.report(await found(registry, app, token), SESSION_EVENT_KIND_APP_OPENED, NOON_MS)
    before = await found(registry, app, token)
    registry.clock.move(300 * DAY_S)
    await opened(registry, await found(registry, app, other))
    await make_pass(registry)
    assert await registered(registry, app, [token]) == 0
    proven = RegisterDevice(
        platform=platform, authority=REGISTRATION_AUTHORITY_KEY, proven_number=before.number, attributes=Attributes()
    )
    await registry.apply(command(app, token, at_ms=registry.clock.now_ms(), register=proven))
    after = await found(registry, app, token)
    assert (after.number, after.alias, after.registered_ms) == (before.number, "alice", NOON_MS)
    assert after.registered_again_ms == registry.clock.now_ms()


async def test_requests_of_others_do_not_bring_a_device_back(registry: RunningRegistry) -> None:
    app, (token,) = await silent_and_lively(registry)
    await registry.apply(set_alias(app, token, "alice", NOON_MS))
    await make_pass(registry)
    facts = len(await device_facts(registry.log))
    await registry.apply(
        command(app, token, add_stags=AddStags(stags=["x"])),
        command(app, token, remove=RemoveDevice(reason="unregistered")),
        clear_alias(app, token, only="alice"),
    )
    assert len(await device_facts(registry.log)) == facts
    await registry.apply(register(app, token, registry.clock.now_ms()))
    anew = await found(registry, app, token)
    assert (anew.alias, anew.registered_ms, anew.silent_since_ms) == ("", registry.clock.now_ms(), 0)


async def test_a_revoked_device_that_was_silent_does_not_come_back(registry: RunningRegistry) -> None:
    app, (token, other) = await silent_and_lively(registry, silent=2, lively=150)
    devices = [await found(registry, app, each) for each in (token, other)]
    await make_pass(registry)
    await registry.apply(command(app, token, revoke_key=RevokeKey()))
    await opened(registry, *devices)
    await until(lambda: _exists(registry, app, other))
    assert await registry.device(app.appkey, token) is None
    await registry.apply(register(app, token, registry.clock.now_ms()))
    anew = await found(registry, app, token)
    assert (list(anew.former_numbers), anew.number != devices[0].number) == ([devices[0].number], True)
    (running,) = (service for service in registry.role.services if isinstance(service, RetirementWorker))
    count = "SELECT count(*) FROM silent"
    left = await running._follower.query(lambda: running._devices._rows.execute(count).fetchone()[0])
    assert left == 0, "nothing is kept of the former number, which the log may not show any more"


async def test_a_session_that_is_read_before_the_removal_brings_the_device_back_too(registry: RunningRegistry) -> None:
    """The gateway appends the session while the registry decides the removal."""
    app, (token,) = await silent_and_lively(registry)
    device = await found(registry, app, token)
    await opened(registry, device)
    device.removed_ms, device.removed_reason, device.silent_since_ms = registry.clock.now_ms(), "silent", NOON_MS
    (running,) = (service for service in registry.role.services if isinstance(service, RetirementWorker))
    await running._follower.write(lambda: running._with_meta([device_fact(device)]))
    await until(lambda: _exists(registry, app, token))


@pytest.mark.parametrize("after", [False, True])
async def test_a_kill_between_two_pages_removes_nothing_twice_and_no_more_than_a_day_s(
    start: Start, log: SqliteLog, settings: RegistrySettings, clock: ManualClock, *, after: bool
) -> None:
    async with start() as registry:
        app, tokens = await silent_and_lively(registry, silent=140, lively=20)
    await log.close()
    path = Path(settings.data_dir) / "log.sqlite"
    dying_log = CrashOnTopicLog(path, DEVICES.name, after=after)
    dying = RunningRegistry(settings, dying_log, clock)
    await dying.start()
    making = asyncio.create_task(make_pass(dying))
    done, _ = await asyncio.wait([making, *dying.tasks], return_when=asyncio.FIRST_EXCEPTION, timeout=BOUND_S)
    assert KilledError in [type(task.exception()) for task in done]
    making.cancel()
    await dying.stop()
    await dying_log.close()

    reopened = SqliteLog(path, TOPICS)
    async with start(reopened) as registry:
        await make_pass(registry)
        await make_pass(registry)
        removed = [fact.device.token for fact in await device_facts(reopened) if fact.device.removed_ms]
        assert len(removed) == len(set(removed)) == 2
        assert await registered(registry, app, tokens) == 138
        assert (await registry.verify()).equal
    await reopened.close()


async def test_devices_that_came_back_during_a_standstill_are_back_after_the_start(
    start: Start, log: SqliteLog
) -> None:
    async with start() as registry:
        app, tokens = await silent_and_lively(registry, silent=2, lively=150)
        devices = [await found(registry, app, token) for token in tokens]
        await make_pass(registry)
        assert await registered(registry, app, tokens) == 0
        now_ms = registry.clock.now_ms()
    await log.append([session_record(device, SESSION_EVENT_KIND_OPENED, now_ms) for device in devices])
    async with start() as registry:
        await until(lambda: _exists(registry, app, tokens[0]))
        await until(lambda: _exists(registry, app, tokens[1]))
        assert (await registry.verify()).equal


async def test_the_registry_makes_passes_by_its_clock(start: Start, settings: RegistrySettings) -> None:
    async with start(with_settings=msgspec.structs.replace(settings, device_days=DAYS)) as registry:
        app, (token,) = await silent_and_lively(registry)

        lively = await found(registry, app, "lively-0")

        async def is_gone() -> bool:
            registry.clock.move(3600)
            await opened(registry, lively)
            return await registry.device(app.appkey, token) is None

        await until(is_gone)


@pytest.mark.parametrize(("days", "is_accepted"), [(0, True), (1, False), (89, False), (90, True)])
def test_fewer_days_than_a_connection_may_last_are_refused(days: int, *, is_accepted: bool) -> None:
    settings = RegistrySettings(device_days=days)
    if is_accepted:
        settings.check()
    else:
        with pytest.raises(SettingsError, match="CARILLON_DEVICE_DAYS is"):
            settings.check()
