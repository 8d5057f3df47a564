"""Apps: created, changed and looked up; their secrets are sealed in the log."""

import asyncio
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import msgspec
import pytest

from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, PLATFORM_IOS, App, AppFact
from protos.registry.v1.registry_pb2 import (
    ApnsKeyChange,
    CreateAppRequest,
    GetAppRequest,
    ListAppsRequest,
    RotateSecretRequest,
    UpdateAppRequest,
)
from protos.runtime.v1.log_pb2 import Meta, Origin
from services.domain.apps import AppDirectory
from services.domain.topics import APPS, TOPICS, decode
from services.errors import ConflictError, InputError, NotFoundError, UnavailableError
from services.log.port import NewRecord, Partition
from services.log.sqlite.file import RecordPage
from services.log.sqlite.log import SqliteLog
from services.registry import app_epochs
from services.registry.app_epochs import AppEpochs, AppLookup
from services.registry.queries import RegistryQueries
from services.registry.server import RegistryServicer
from services.registry.settings import RegistrySettings
from services.registry.store import ALIASES_DDL, DEVICES_DDL
from services.replica.sqlite_store import SqliteStore
from testkit.apns.keys import KEY_ID, TEAM_ID, pem
from tests.services.registry.conftest import BOUND_S, NOON_MS, RunningRegistry, Start, records

REQUEST = CreateAppRequest(platform=PLATFORM_IOS, name="天气", package="com.example.weather", account="ACME")


async def test_a_created_app_is_known_when_the_call_returns(registry: RunningRegistry) -> None:
    answer = await registry.stub.CreateApp(REQUEST)
    app = answer.app
    assert app == App(
        appkey=app.appkey,
        platform=PLATFORM_IOS,
        name="天气",
        package="com.example.weather",
        account="ACME",
        sealed_secret=app.sealed_secret,
        created_ms=NOON_MS,
        default_period_s=86_400,
    )
    assert len(answer.secret_key) == 64
    assert registry.keys.open(app.sealed_secret, app.appkey) == answer.secret_key
    assert registry.apps.get(app.appkey) == app
    assert (await registry.stub.GetApp(GetAppRequest(appkey=app.appkey))).app == app


async def test_no_secret_is_unsealed_in_the_log(registry: RunningRegistry) -> None:
    answer = await registry.stub.CreateApp(REQUEST)
    rotated = await registry.stub.RotateSecret(RotateSecretRequest(appkey=answer.app.appkey))
    record = await registry.log.last(Partition(APPS.name, 0))
    assert record is not None
    assert record.key == answer.app.appkey.encode()
    for secret in (answer.secret_key, rotated.secret_key):
        assert secret.encode() not in record.value


async def test_every_change_stays_in_the_log_with_its_origin(registry: RunningRegistry) -> None:
    alice = Origin(interface="cli", address="alice@ops", request_id="r1")
    request = CreateAppRequest(platform=PLATFORM_IOS, name="N", package="com.example.n", origin=alice)
    app = (await registry.stub.CreateApp(request)).app
    await registry.stub.UpdateApp(
        UpdateAppRequest(appkey=app.appkey, ack_info_enabled=True, default_period_s=60, origin=alice)
    )
    await registry.stub.UpdateApp(UpdateAppRequest(appkey=app.appkey, ack_info_enabled=True, origin=alice))
    key = ApnsKeyChange(pem=pem(), key_id=KEY_ID, team_id=TEAM_ID)
    await registry.stub.UpdateApp(UpdateAppRequest(appkey=app.appkey, apns=key, origin=alice))
    await registry.stub.RotateSecret(RotateSecretRequest(appkey=app.appkey))

    facts = [decode(record) for record in await records(registry.log, APPS.name)]
    changes = [fact for fact in facts if fact.WhichOneof("fact") == "changed"]
    assert [(fact.changed.action, list(fact.changed.settings), fact.meta.origin.address) for fact in changes] == [
        ("created", [], "alice@ops"),
        ("set", ["ack_info on", "default_period_s 60"], "alice@ops"),
        (
            "set",
            [
                *("apns_key ABC123DEFG of TEAM456789", "apns_topic com.example.n"),
                *("apns_environment production", "a new APNs key file"),
            ],
            "alice@ops",
        ),
        ("secret rotated", [], ""),
    ]


async def test_apps_are_listed_by_age(registry: RunningRegistry) -> None:
    assert not (await registry.stub.ListApps(ListAppsRequest())).apps
    made = []
    for name in ("c", "a", "b"):
        registry.clock.move(1)
        made.append(
            (await registry.stub.CreateApp(CreateAppRequest(platform=PLATFORM_IOS, name=name, package="p"))).app
        )
    assert list((await registry.stub.ListApps(ListAppsRequest())).apps) == made


async def test_only_the_named_settings_change(registry: RunningRegistry) -> None:
    app = await registry.app()
    changed = (await registry.stub.UpdateApp(UpdateAppRequest(appkey=app.appkey, ack_info_enabled=True))).app
    assert changed.ack_info_enabled
    changed = (await registry.stub.UpdateApp(UpdateAppRequest(appkey=app.appkey, default_period_s=60, name="N"))).app
    app.ack_info_enabled, app.default_period_s, app.name = True, 60, "N"
    assert changed == app
    assert registry.apps.get(app.appkey) == app
    end = await registry.log.ends([Partition(APPS.name, 0)])
    assert (await registry.stub.UpdateApp(UpdateAppRequest(appkey=app.appkey, name="N"))).app == app
    assert await registry.log.ends([Partition(APPS.name, 0)]) == end


async def test_concurrent_changes_are_all_applied(registry: RunningRegistry) -> None:
    app = await registry.app()
    await asyncio.gather(
        registry.stub.UpdateApp(UpdateAppRequest(appkey=app.appkey, ack_info_enabled=True)),
        registry.stub.UpdateApp(UpdateAppRequest(appkey=app.appkey, default_period_s=600)),
        registry.stub.UpdateApp(UpdateAppRequest(appkey=app.appkey, name="Both")),
    )
    known = registry.apps.get(app.appkey)
    assert known is not None
    assert (known.ack_info_enabled, known.default_period_s, known.name) == (True, 600, "Both")


async def test_a_rotated_secret_replaces_the_old_one(registry: RunningRegistry) -> None:
    answer = await registry.stub.CreateApp(REQUEST)
    rotated = await registry.stub.RotateSecret(RotateSecretRequest(appkey=answer.app.appkey))
    assert rotated.secret_key != answer.secret_key
    known = registry.apps.get(answer.app.appkey)
    assert known is not None
    assert registry.keys.open(known.sealed_secret, known.appkey) == rotated.secret_key


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("platform", CreateAppRequest(name="n", package="p")),
        ("platform", CreateAppRequest(platform=7, name="n", package="p")),  # type: ignore[arg-type]
        ("name", CreateAppRequest(platform=PLATFORM_ANDROID, package="p")),
        ("name", CreateAppRequest(platform=PLATFORM_ANDROID, name="  ", package="p")),
        ("name", CreateAppRequest(platform=PLATFORM_ANDROID, name="n" * 65, package="p")),
        ("name", CreateAppRequest(platform=PLATFORM_ANDROID, name="a\nb", package="p")),
        ("package", CreateAppRequest(platform=PLATFORM_ANDROID, name="n")),
        ("package", CreateAppRequest(platform=PLATFORM_ANDROID, name="n", package="p" * 129)),
        ("package", CreateAppRequest(platform=PLATFORM_ANDROID, name="n", package="a b")),
        ("account", CreateAppRequest(platform=PLATFORM_ANDROID, name="n", package="p", account="a" * 65)),
    ],
)
async def test_an_invalid_app_is_refused_with_the_name_of_the_field(
    registry: RunningRegistry, field: str, request_: CreateAppRequest
) -> None:
    with pytest.raises(InputError, match=field):
        await registry.stub.CreateApp(request_)
    assert not registry.apps.all()


@pytest.mark.parametrize("period_s", [0, 59, 604_801])
async def test_a_period_out_of_bounds_is_refused(registry: RunningRegistry, period_s: int) -> None:
    app = await registry.app()
    request = CreateAppRequest(platform=PLATFORM_IOS, name="n", package="p", default_period_s=period_s)
    with pytest.raises(InputError, match="default_period_s"):
        await registry.stub.CreateApp(request)
    with pytest.raises(InputError, match="default_period_s"):
        await registry.stub.UpdateApp(UpdateAppRequest(appkey=app.appkey, default_period_s=period_s))
    assert registry.apps.get(app.appkey) == app


async def test_an_unknown_app_is_not_found(registry: RunningRegistry) -> None:
    for call in (
        registry.stub.GetApp(GetAppRequest(appkey="1")),
        registry.stub.UpdateApp(UpdateAppRequest(appkey="1", name="n")),
        registry.stub.RotateSecret(RotateSecretRequest(appkey="1")),
    ):
        with pytest.raises(NotFoundError):
            await call


async def test_only_instance_0_changes_apps(start: Start, log: SqliteLog, settings: RegistrySettings) -> None:
    second = msgspec.structs.replace(settings, shard=1, shards=2)
    async with start(log, second) as registry:
        with pytest.raises(ConflictError, match="instance 0"):
            await registry.app()


async def test_a_log_that_lost_the_epochs_of_devices_alone_has_an_owner_of_the_apps(
    start: Start, log: SqliteLog, settings: RegistrySettings
) -> None:
    """The former owners' announcements are still in `apps`, which is a partition of its own."""
    announcement = AppFact(meta=Meta(event_id=b"former owner", writer="registry", epoch=7 << 24))
    await log.append([NewRecord(APPS.name, 0, b"epoch/former", announcement.SerializeToString())])
    async with start(log, settings) as registry:
        app = await registry.app()
        assert registry.apps.get(app.appkey) is not None


async def test_an_appkey_in_use_is_not_assigned_again(registry: RunningRegistry) -> None:
    app = await registry.app()
    keys = iter([app.appkey, app.appkey, "1234567890"])
    devices = SqliteStore(registry.settings.data / "d.sqlite", DEVICES_DDL)
    aliases = SqliteStore(registry.settings.data / "a.sqlite", ALIASES_DDL)
    queries = RegistryQueries(devices, aliases, AsyncMock())
    owner: Any = SimpleNamespace(check=lambda: None, confirm=lambda: None)
    epochs = AppEpochs(registry.log, registry.apps, registry.clock, lambda: registry.apps.epoch)
    assert await epochs.begin()
    servicer = RegistryServicer(
        registry.context, queries, registry.settings, owner, epochs, AsyncMock(), new_appkey=lambda: next(keys)
    )
    answer = await servicer.CreateApp(REQUEST, None)  # type: ignore[arg-type]
    assert answer.app.appkey == "1234567890"
    queries.close()
    devices.close()
    aliases.close()


class LateLog(SqliteLog):
    """A log that returns no records until its ends are queried after the start, as a refresh does."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, TOPICS)
        self._ends_queries = 0
        self._queried_again = asyncio.Event()

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        self._ends_queries += 1
        if self._ends_queries > 2:
            self._queried_again.set()
        return await super().ends(partitions)

    async def select(self, starts: Mapping[Partition, int], limit: int) -> RecordPage:
        await self._queried_again.wait()
        return await super().select(starts, limit)


async def test_an_app_created_by_another_instance_is_found_when_its_first_device_registers(tmp_path: Path) -> None:
    """Each instance has its own app directory, which may not have read the app when the command arrives."""
    log = LateLog(tmp_path / "late.sqlite")
    directory = AppDirectory(log)
    ready = asyncio.Event()
    task = asyncio.create_task(directory.run(ready))
    await asyncio.wait_for(ready.wait(), BOUND_S)
    lookup = AppLookup(directory)
    lookup.use_running_loop()
    app = App(appkey="1234567890")
    await log.append([NewRecord(APPS.name, 0, b"1234567890", AppFact(app=app).SerializeToString())])
    assert directory.get("1234567890") is None
    assert await asyncio.to_thread(lookup.find, "1234567890") == app
    task.cancel()
    await asyncio.wait([task])
    await log.close()


class OutdatedDirectory:
    """A directory that gets its app with the third refresh; two fail before, or do not end in time."""

    def __init__(self, error: type[Exception] | None) -> None:
        self._error = error
        self._app: App | None = None
        self.refreshes = 0

    def get(self, appkey: str) -> App | None:
        return self._app

    async def refresh(self) -> bool:
        self.refreshes += 1
        if self.refreshes < 3:
            if self._error:
                raise self._error
            return False
        self._app = App(appkey="1234567890")
        return True


@pytest.mark.parametrize("error", [None, TimeoutError])
async def test_an_app_is_not_said_to_be_unknown_while_the_directory_is_behind(error: type[Exception] | None) -> None:
    directory = OutdatedDirectory(error)
    lookup = AppLookup(cast(AppDirectory, directory))
    lookup.use_running_loop()
    assert await asyncio.to_thread(lookup.find, "1234567890") == App(appkey="1234567890")
    assert directory.refreshes == 3


async def test_a_look_up_ends_when_the_event_loop_waits_for_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_epochs, "_REFRESH_S", 0.01)
    lookup = AppLookup(cast(AppDirectory, OutdatedDirectory(None)))
    lookup.use_running_loop()
    with ThreadPoolExecutor(1) as thread:
        looking = thread.submit(lookup.find, "1234567890")
        with pytest.raises(UnavailableError, match="try again"):
            looking.result()
