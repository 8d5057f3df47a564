"""The registry's part of a rotation of keys: the switch, the secrets that are sealed anew, and the end."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from protos.gateway.v1.sessions_pb2 import SessionEventKind
from protos.registry.v1.apps_pb2 import CHANNEL_WEBPUSH, PLATFORM_IOS, App, KeyFingerprint
from protos.registry.v1.registry_pb2 import (
    ApnsKeyChange,
    ChangeWebhookRequest,
    ChannelChange,
    CountDevicesNotBackRequest,
    DropFormerKeysRequest,
    NoteKeyFingerprintRequest,
    RotateKeysRequest,
    RotateSecretRequest,
    UpdateAppRequest,
)
from services.domain.apns_credentials import open_credentials
from services.domain.apps import AppDirectory
from services.domain.channel_credentials.webpush import open_web_push
from services.domain.master_key import KeyPurpose, Keys, MasterKey, derive
from services.domain.role_context import follow_keys
from services.domain.topics import APPS, decode
from services.domain.webhooks import secrets_in_force
from services.errors import CarillonError, ConflictError, InputError
from services.log.point_in_time import until_ready
from services.log.port import DelegatingLog, NewRecord
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from services.registry import key_rotation
from testkit.apns.keys import KEY_ID, TEAM_ID, pem
from tests.services.registry.conftest import RunningRegistry, Start, records, register

OLD, NEW, THIRD = MasterKey(bytes(32)), MasterKey(bytes([1] * 32)), MasterKey(bytes([2] * 32))
DAY_MS = 86_400_000
OF_TEAM = "5e0f2c1d0f5f4c1e"


class KilledError(Exception):
    """The process was killed."""


class KillableLog(DelegatingLog):
    """A log whose process is killed at an append: before it, or behind it and before the answer."""

    def __init__(self, log: SqliteLog, at: int, *, appended: bool) -> None:
        super().__init__(log)
        self._left = at
        self._appended = appended

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        if not any(record.topic == APPS.name for record in new_records):
            return await self._log.append(new_records)
        self._left -= 1
        if self._left == 0:
            if self._appended:
                await self._log.append(new_records)
            raise KilledError
        return await self._log.append(new_records)


def both() -> Keys:
    return Keys({KeyPurpose.SECRETS: [derive(bytes([n] * 32), KeyPurpose.SECRETS) for n in range(2)]})


@asynccontextmanager
async def rotating(start: Start, log: object | None = None) -> AsyncIterator[RunningRegistry]:
    """Run a registry that has both keys of secrets and follows which one is in force."""
    given = {} if log is None else {"on": log}
    async with start(keys=both(), **given) as registry:
        for purpose in KeyPurpose:
            noted = KeyFingerprint(purpose=purpose.name, fingerprint=OLD.fingerprint(purpose))
            await registry.stub.NoteKeyFingerprint(NoteKeyFingerprintRequest(fingerprint=noted))
        following = follow_keys(registry.apps, registry.context.keys)
        try:
            yield registry
        finally:
            following.cancel()
            await asyncio.wait([following])


def to(keys: MasterKey) -> RotateKeysRequest:
    return RotateKeysRequest(
        device_keys_fingerprint=keys.fingerprint(KeyPurpose.DEVICES),
        secrets_fingerprint=keys.fingerprint(KeyPurpose.SECRETS),
    )


async def app_with_three_secrets(registry: RunningRegistry, tmp_path: Path) -> App:
    app = await registry.app(PLATFORM_IOS)
    apns = ApnsKeyChange(pem=pem(), key_id=KEY_ID, team_id=TEAM_ID)
    await registry.stub.UpdateApp(UpdateAppRequest(appkey=app.appkey, apns=apns))
    await registry.stub.RotateSecret(RotateSecretRequest(appkey=app.appkey, keep_old_s=DAY_MS // 1000))
    found = registry.apps.get(app.appkey)
    assert found is not None
    return found


def opened(app: App, keys: Keys) -> tuple[str, str, str]:
    credentials = open_credentials(app, keys)
    assert credentials is not None
    return keys.open(app.sealed_secret, app.appkey), keys.open(app.old_sealed_secret, app.appkey), credentials.key_pem


async def test_web_push_keys_are_sealed_with_the_new_key(start: Start) -> None:
    async with rotating(start) as registry:
        app = await registry.app()
        change = ChannelChange(channel=CHANNEL_WEBPUSH, fields={"key": "new", "contact": "mailto:push@example.org"})
        made = (await registry.stub.UpdateApp(UpdateAppRequest(appkey=app.appkey, channels=[change]))).app
        before = open_web_push(made, OLD)
        await registry.stub.RotateKeys(to(NEW))
        sealed_anew = registry.apps.get(app.appkey)
        assert sealed_anew is not None
        assert open_web_push(sealed_anew, NEW) == before
        with pytest.raises(CarillonError, match="another master key"):
            open_web_push(sealed_anew, OLD)


async def test_secrets_of_webhooks_are_sealed_with_the_new_key(start: Start) -> None:
    async with rotating(start) as registry:
        app = await registry.app()
        change = ChangeWebhookRequest(appkey=app.appkey, url="https://hooks.example.org/")
        made = await registry.stub.ChangeWebhook(change)
        again = ChangeWebhookRequest(appkey=app.appkey, webhook_id=made.webhook.webhook_id, rotate_keep_old_s=60)
        rotated = await registry.stub.ChangeWebhook(again)
        await registry.stub.RotateKeys(to(NEW))
        sealed_anew = registry.apps.get(app.appkey)
        assert sealed_anew is not None
        assert secrets_in_force(sealed_anew.webhooks[0], app.appkey, NEW, 0) == [rotated.secret, made.secret]
        with pytest.raises(CarillonError, match="another master key"):
            secrets_in_force(sealed_anew.webhooks[0], app.appkey, OLD, 0)


async def test_secrets_of_webhooks_of_teams_are_sealed_with_the_new_key(start: Start, clock: ManualClock) -> None:
    async with rotating(start) as registry:
        made = await registry.stub.ChangeWebhook(
            ChangeWebhookRequest(team_id=OF_TEAM, url="https://hooks.example.org/")
        )
        await registry.stub.RotateKeys(to(NEW))
        (sealed_anew,) = registry.apps.webhooks_of_team(OF_TEAM)
        assert secrets_in_force(sealed_anew, f"team/{OF_TEAM}", NEW, 0) == [made.secret]
        with pytest.raises(CarillonError, match="another master key"):
            secrets_in_force(sealed_anew, f"team/{OF_TEAM}", OLD, 0)
        clock.move(600)
        await registry.stub.DropFormerKeys(DropFormerKeysRequest())


async def test_all_secrets_of_apps_are_sealed_with_the_new_key_and_the_old_one_opens_nothing(
    start: Start, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_rotation, "BATCH", 2)
    async with rotating(start) as registry:
        secrets = {}
        for _ in range(5):
            app = await app_with_three_secrets(registry, tmp_path)
            secrets[app.appkey] = opened(app, OLD)
        answer = await registry.stub.RotateKeys(to(NEW))
        assert (answer.apps_sealed, answer.already_switched, answer.already_dropped) == (5, False, False)
        assert answer.switched_ms == clock.now_ms()
        again = await registry.stub.RotateKeys(to(NEW))
        assert (again.apps_sealed, again.already_switched, again.switched_ms) == (0, True, answer.switched_ms)
        assert {app.appkey: opened(app, NEW) for app in registry.apps.all()} == secrets
        later = await registry.app()
        assert NEW.open(later.sealed_secret, later.appkey)
        with pytest.raises(ConflictError, match="less than 10 minutes ago"):
            await registry.stub.DropFormerKeys(DropFormerKeysRequest())
        clock.move(600)
        for already in (False, True):
            assert (await registry.stub.DropFormerKeys(DropFormerKeysRequest())).already_dropped is already
        with pytest.raises(CarillonError, match="another master key"):
            registry.context.keys.open(OLD.seal("s", "1"), "1")
        changes = [decode(record) for record in await records(registry.log, APPS.name, 1)]
        actions = [fact.changed.action for fact in changes if fact.HasField("changed") and not fact.changed.appkey]
        assert actions == ["moved to new keys", "closed to former keys"]
    restarted = AppDirectory(registry.log)
    await until_ready(restarted.run)
    assert [restarted.key_chain(purpose.name) for purpose in KeyPurpose] == [
        registry.apps.key_chain(purpose.name) for purpose in KeyPurpose
    ]
    assert {app.appkey: opened(app, NEW) for app in restarted.all() if app.appkey in secrets} == secrets


async def test_keys_that_cannot_come_into_force_are_refused_and_change_nothing(start: Start) -> None:
    async with rotating(start) as registry:
        app = await registry.app()
        with pytest.raises(InputError, match="16 bytes"):
            await registry.stub.RotateKeys(RotateKeysRequest(secrets_fingerprint=bytes(16)))
        with pytest.raises(ConflictError, match="the registry has not the new key of app secrets: give every process"):
            await registry.stub.RotateKeys(to(THIRD))
        assert registry.apps.get(app.appkey) == app
        await registry.stub.RotateKeys(to(NEW))
        with pytest.raises(ConflictError, match="the former rotation has not ended"):
            await registry.stub.RotateKeys(to(THIRD))
        with pytest.raises(InputError, match="was in force before"):
            await registry.stub.RotateKeys(to(OLD))
        present = NEW.fingerprint(KeyPurpose.DEVICES)
        forged = KeyFingerprint(purpose="DEVICES", fingerprint=bytes(16), predecessor=present)
        answer = await registry.stub.NoteKeyFingerprint(NoteKeyFingerprintRequest(fingerprint=forged))
        assert answer.fingerprint == present, "a role that notes its key rotates nothing"


@pytest.mark.parametrize("appended", [False, True], ids=["before the append", "behind the append"])
async def test_a_rotation_killed_at_any_append_ends_right_when_it_is_repeated(
    start: Start, log: SqliteLog, tmp_path: Path, clock: ManualClock, *, appended: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(key_rotation, "BATCH", 1)
    async with rotating(start) as registry:
        secrets = {}
        for _ in range(2):
            app = await app_with_three_secrets(registry, tmp_path)
            secrets[app.appkey] = opened(app, OLD)
    kills, is_finished = 0, False
    while not is_finished:
        # The first append announces the epoch. Killed behind the next one each time, or before the one after it.
        at = 2 if appended or not kills else 3
        async with start(keys=both(), on=KillableLog(log, at, appended=appended)) as registry:
            following = follow_keys(registry.apps, registry.context.keys)
            try:
                await registry.stub.RotateKeys(to(NEW))
                clock.move(600)
                await registry.stub.DropFormerKeys(DropFormerKeysRequest())
            except CarillonError as error:
                kills += str(error) == "internal error"  # the answer of a call that was killed
            finally:
                following.cancel()
                await asyncio.wait([following])
        directory = AppDirectory(log)
        await until_ready(directory.run)
        chain = directory.key_chain("SECRETS")
        assert chain is not None
        assert {app.appkey: opened(app, both()) for app in directory.all()} == secrets
        is_finished = chain.in_force == NEW.fingerprint(KeyPurpose.SECRETS) and not chain.former
    assert kills == 4, "the switch, two apps, the end"
    assert {app.appkey: opened(app, NEW) for app in directory.all()} == secrets


async def test_the_devices_that_have_not_come_back_are_counted(start: Start, clock: ManualClock) -> None:
    async with rotating(start) as registry:
        app = await registry.app()
        await registry.apply(*(register(app, f"t{number}", at_ms=clock.now_ms()) for number in range(5)))
        count = CountDevicesNotBackRequest()
        assert (await registry.stub.CountDevicesNotBack(count)).devices == 0, "no rotation"
        clock.move(3600)
        await registry.stub.RotateKeys(to(NEW))
        assert (await registry.stub.CountDevicesNotBack(count)).devices == 5
        clock.move(60)
        opened_again = SessionEventKind.SESSION_EVENT_KIND_OPENED
        for number in range(2):
            device = await registry.device(app.appkey, f"t{number}")
            assert device is not None
            await registry.report(device, opened_again, clock.now_ms())
        await registry.apply(register(app, "new", at_ms=clock.now_ms()))
        assert (await registry.stub.CountDevicesNotBack(count)).devices == 3
        clock.move(600)
        await registry.stub.DropFormerKeys(DropFormerKeysRequest())
        assert (await registry.stub.CountDevicesNotBack(count)).devices == 0
