"""Devices of before records were sealed: written once more under keys without tokens, also after kills."""

from pathlib import Path

import pytest

from protos.registry.v1.devices_pb2 import AddTags, Device, RemoveDevice
from services.domain.sealed_log import SealedLog
from services.domain.sealing import Sealer
from services.domain.topics import APPS, DEVICE_COMMANDS, DEVICES, TOPICS, device_key
from services.log.port import Log, NewRecord
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from services.registry import resealing
from services.registry.projection import decide_device_commands
from services.registry.resealing import PAGE_MS, PROGRESS_FILE, ResealingWorker
from services.registry.settings import RegistrySettings
from services.replica.fencing import ANNOUNCEMENT_KEY
from testkit.faults.crashing_log import KillingLog
from testkit.persons import key_ring
from testkit.waiting import until
from tests.services.registry.conftest import (
    NOON_MS,
    PARTITIONS,
    RunningRegistry,
    Start,
    command,
    device_facts,
    every_partition,
    records,
    register,
    set_alias,
)

TOKENS = [f"token {number}" for number in range(9)]


class Keys:
    """The keys of persons of a test."""

    def __init__(self, directory: Path) -> None:
        self.ring = key_ring(directory / "persons")

    def sealing(self, log: Log) -> SealedLog:
        return SealedLog(log, Sealer(self.ring), seals=True)

    def erase(self, appkey: str, token: str) -> None:
        name = self.ring.name("token", appkey, token)
        assert self.ring.puncture(self.ring.subject("token", appkey, name, "0"))


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resealing, "PAGE", 2)


async def fill(registry: RunningRegistry) -> str:
    """Register the devices; some get an alias, some are removed."""
    app = await registry.app()
    await registry.apply(*(register(app, token) for token in TOKENS))
    await registry.apply(*(set_alias(app, token, f"alias of {token}") for token in TOKENS[::2]))
    await registry.apply(command(app, TOKENS[1], remove=RemoveDevice()))
    return app.appkey


def worker_of(registry: RunningRegistry) -> ResealingWorker:
    return next(each for each in registry.role.services if isinstance(each, ResealingWorker))


async def until_resealed(registry: RunningRegistry) -> None:
    file = registry.settings.state_dir("registry") / PROGRESS_FILE

    async def is_done() -> bool:
        registry.clock.move(PAGE_MS / 1000)
        return file.exists() and file.read_bytes().endswith(b"true]")

    await until(is_done)


async def stored_keys(log: Log) -> set[bytes]:
    """Return the keys under which the log below holds devices."""
    found = await records(log, DEVICES.name)
    return {record.key for record in found if record.value and not record.key.startswith(ANNOUNCEMENT_KEY)}


async def devices_of(registry: RunningRegistry, appkey: str) -> list[Device | None]:
    return [await registry.device(appkey, token) for token in TOKENS]


async def test_all_devices_get_keys_without_tokens(start: Start, log: SqliteLog, keys: Keys) -> None:
    async with start() as registry:
        appkey = await fill(registry)
        before = await devices_of(registry, appkey)
    sealed = keys.sealing(log)
    async with start(sealed) as again:
        await again.apply(register(appkey, "new"))
        worker_of(again).begin()
        await until_resealed(again)
        assert await devices_of(again, appkey) == before
        assert (await again.verify()).equal
    stored = await stored_keys(log)
    assert stored == {device_key(appkey, keys.ring.name("token", appkey, token)) for token in [*TOKENS, "new"]}
    assert not any(b"token " in record.key + record.value for record in await records(log, DEVICES.name))
    ends = await log.ends(every_partition())
    async with start(sealed) as once_more:
        worker_of(once_more).begin()
        await once_more.apply(register(appkey, "newer"))
    appended = [end - ends[partition] for partition, end in (await log.ends(every_partition())).items()]
    assert sum(appended) < len(TOKENS), "a pass that is done is not made again"


async def test_after_a_kill_the_pass_goes_on_behind_the_last_page(
    start: Start, log: SqliteLog, keys: Keys, clock: ManualClock, settings: RegistrySettings
) -> None:
    async with start() as registry:
        await fill(registry)
    killing = KillingLog(keys.sealing(log))
    pages: list[int] = []

    def is_third_page(new_record: NewRecord) -> bool:
        pages.append(new_record.topic == DEVICES.name and not new_record.value)
        return sum(pages) > 4

    killing.kill_at, killing.kept_records = is_third_page, 1
    dying = RunningRegistry(settings, killing, clock)
    await dying.start()
    worker_of(dying).begin()

    async def has_died() -> bool:
        clock.move(PAGE_MS / 1000)
        return killing.died.is_set()

    await until(has_died)
    await dying.stop()
    assert (settings.state_dir("registry") / PROGRESS_FILE).exists()
    assert any(b"token " in record.key for record in await records(log, DEVICES.name)), "some are still to be written"
    async with start(keys.sealing(log)) as again:
        worker_of(again).begin()
        await until_resealed(again)
        assert (await again.verify()).equal
    assert not any(b"token " in record.key + record.value for record in await records(log, DEVICES.name))
    assert len(await stored_keys(log)) == len(TOKENS)


async def test_commands_of_an_erased_person_do_not_stop_the_registry(
    start: Start, log: SqliteLog, keys: Keys, settings: RegistrySettings, tmp_path: Path
) -> None:
    """More of them than the limit of dead letters; decided once more they give the device its number again."""
    sealed = keys.sealing(log)
    async with start(sealed) as registry:
        app = await registry.app()
        await registry.apply(register(app, "t"), register(app, "other"))
        device = await registry.device(app.appkey, "t")
        await registry.stop()
        await registry.write(
            *(command(app, "t", at_ms=NOON_MS + n, add_tags=AddTags(tags=[n])) for n in range(120)),
            set_alias(app, "other", "anna"),
        )
    keys.erase(app.appkey, "t")
    async with start(sealed) as again:
        assert [each.token for each in await again.alias(app.appkey, "anna")] == ["other"]
    assert not (settings.data / "dead-letters").exists()
    assert device is not None
    name = keys.ring.name("token", app.appkey, "t")
    work = tmp_path / "work"
    work.mkdir()
    past = SqliteLog(work / "log.sqlite", TOPICS)
    for topic, partitions in ((APPS, 1), (DEVICE_COMMANDS, PARTITIONS)):
        for record in await records(log, topic.name, partitions):
            await past.append([NewRecord(record.topic, record.partition, record.key, record.value)])
    await decide_device_commands(settings, work, keys.sealing(past))
    decided = [fact.device for fact in await device_facts(keys.sealing(past))]
    assert (name, device.partition, device.number) in [(each.token, each.partition, each.number) for each in decided]
    assert not (work / "dead-letters.jsonl").exists()
    assert device_key(app.appkey, name) in await stored_keys(past)
    await past.close()
