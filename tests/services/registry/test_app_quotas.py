"""Quotas that the registry decides, and the rotation of secrets."""

import asyncio
from typing import Any

import msgspec
import pytest

from protos.registry.v1.apps_pb2 import IDENTITY_MODE_OFF, IDENTITY_MODE_REQUIRE, App
from protos.registry.v1.devices_pb2 import RemoveDevice
from protos.registry.v1.registry_pb2 import (
    AllowFromChange,
    IdentityChange,
    IdentityKeys,
    IdentityTags,
    NoteQuotaReachedRequest,
    QuotasChange,
    ReserveDeviceRequest,
    RotateSecretRequest,
    TakeBroadcastsRequest,
    UpdateAppRequest,
)
from services.domain.apps import APPS_PARTITION
from services.domain.master_key import sealed_digest
from services.domain.topics import APPS, decode
from services.errors import ConflictError, InputError, NotFoundError
from services.registry.app_quotas import RESERVED_MS
from services.registry.settings import RegistrySettings
from testkit.proofs import ProofKey
from tests.services.registry.conftest import RunningRegistry, Start, command, records, register

DAY_MS = 86_400_000


@pytest.fixture
def settings(settings: RegistrySettings) -> RegistrySettings:
    return msgspec.structs.replace(settings, timezone="Asia/Shanghai")


async def limited_app(registry: RunningRegistry, **quotas: Any) -> App:
    app = await registry.app()
    change = UpdateAppRequest(appkey=app.appkey, quotas=QuotasChange(**quotas))
    return (await registry.stub.UpdateApp(change)).app


async def broadcast(registry: RunningRegistry, *apps: App) -> tuple[str, int]:
    request = TakeBroadcastsRequest(appkeys=[app.appkey for app in apps])
    answer = await registry.stub.TakeBroadcasts(request)
    return answer.exhausted_appkey, answer.retry_after_s


async def test_broadcasts_are_counted_by_day_over_restarts(start: Start) -> None:
    async with start() as registry:
        app, other = await limited_app(registry, broadcasts_per_day=3), await registry.app()
        assert [await broadcast(registry, app, other) for _ in range(2)] == [("", 0)] * 2
    async with start() as registry:
        assert await broadcast(registry, app) == ("", 0)
        # 2026-09-21 22:13:20 in Shanghai: the day ends in 1:46:40.
        assert await broadcast(registry, other, app) == (app.appkey, 6401)
        assert await broadcast(registry, other) == ("", 0)
        counted = [decode(record) for record in await records(registry.log, APPS.name)]
        assert [fact.broadcasts.count for fact in counted if fact.HasField("broadcasts")] == [3]
        registry.clock.move(6401)
        assert await broadcast(registry, app) == ("", 0)


async def reached_quotas(registry: RunningRegistry) -> list[tuple[str, str, int, str]]:
    """Return app, quota, limit and day of each record of a reached quota that compaction has left."""
    facts = [decode(record).quota_reached for record in await records(registry.log, APPS.name)]
    return [(fact.appkey, fact.quota, fact.limit, fact.day) for fact in facts if fact.appkey]


async def test_a_reached_quota_is_recorded_once_a_day_over_restarts(start: Start) -> None:
    async with start() as registry:
        app = await registry.app()
        many = NoteQuotaReachedRequest(appkey=app.appkey, quota="requests_per_s", limit=5)
        await asyncio.gather(*(registry.stub.NoteQuotaReached(many) for _ in range(3)))
        assert await reached_quotas(registry) == [(app.appkey, "requests_per_s", 5, "2026-09-21")]
        await registry.stub.NoteQuotaReached(NoteQuotaReachedRequest(appkey=app.appkey, quota="devices", limit=2))
    async with start() as registry:
        ends = await registry.log.ends([APPS_PARTITION])
        await registry.stub.NoteQuotaReached(many)
        assert await registry.log.ends([APPS_PARTITION]) == ends
        registry.clock.move(6401)
        await registry.stub.NoteQuotaReached(many)
        assert await reached_quotas(registry) == [
            (app.appkey, "devices", 2, "2026-09-21"),
            (app.appkey, "requests_per_s", 5, "2026-09-22"),
        ]
        with pytest.raises(InputError, match="quota must be one of"):
            await registry.stub.NoteQuotaReached(NoteQuotaReachedRequest(appkey=app.appkey, quota="broadcasts_per_day"))
        with pytest.raises(NotFoundError):
            await registry.stub.NoteQuotaReached(NoteQuotaReachedRequest(appkey="none", quota="devices"))


async def test_several_apps_are_counted_together_or_not_at_all(registry: RunningRegistry) -> None:
    many, few = await limited_app(registry, broadcasts_per_day=9), await limited_app(registry, broadcasts_per_day=1)
    assert await broadcast(registry, many, few) == ("", 0)
    assert (await broadcast(registry, many, few))[0] == few.appkey
    counted = [decode(record).broadcasts for record in await records(registry.log, APPS.name)]
    assert [count.count for count in counted if count.appkey == many.appkey] == [1]


async def test_concurrent_broadcasts_do_not_exceed_the_quota(registry: RunningRegistry) -> None:
    app = await limited_app(registry, broadcasts_per_day=5)
    answers = await asyncio.gather(*(broadcast(registry, app) for _ in range(20)))
    assert sum(exhausted == "" for exhausted, _ in answers) == 5


async def reserve(registry: RunningRegistry, app: App, token: str) -> bool:
    answer = await registry.stub.ReserveDevice(ReserveDeviceRequest(appkey=app.appkey, token=token))
    return not answer.quota_used_up


async def test_places_for_devices_are_reserved_up_to_the_quota(registry: RunningRegistry) -> None:
    app = await limited_app(registry, devices=3)
    await registry.apply(register(app, "a"), register(app, "b"))
    assert await reserve(registry, app, "a")
    assert await reserve(registry, app, "c")
    assert not await reserve(registry, app, "d")
    assert await reserve(registry, app, "c")
    registry.clock.move(RESERVED_MS / 1000)
    assert await reserve(registry, app, "d")
    await registry.apply(register(app, "d"))
    assert not await reserve(registry, app, "e")
    await registry.apply(command(app, "a", remove=RemoveDevice(reason="unregistered")))
    assert await reserve(registry, app, "e")
    assert not await reserve(registry, app, "a")


async def test_concurrent_registrations_do_not_exceed_the_quota(registry: RunningRegistry) -> None:
    app = await limited_app(registry, devices=5)

    async def registered(token: str) -> bool:
        if is_reserved := await reserve(registry, app, token):
            await registry.apply(register(app, token))
        return is_reserved

    answers = await asyncio.gather(*(registered(f"t{number}") for number in range(20)))
    while sum(answers) < 5:  # those that came at the same time as others for the last place may try again
        answers.append(await registered(f"t{len(answers)}"))
    assert not await reserve(registry, app, "one more")
    assert sum(answers) == 5


async def test_each_instance_admits_its_share(start: Start, settings: RegistrySettings) -> None:
    async with start() as registry:
        app = await limited_app(registry, devices=6)
    second = msgspec.structs.replace(settings, shard=1, shards=2)
    async with start(with_settings=second) as registry:
        assert [await reserve(registry, app, f"t{number}") for number in range(4)] == [True] * 3 + [False]


async def test_the_count_of_devices_follows_every_change_and_is_the_same_after_a_replay(
    registry: RunningRegistry,
) -> None:
    app = await limited_app(registry, devices=1)
    await registry.apply(register(app, "a"))
    for _ in range(2):
        await registry.apply(command(app, "a", remove=RemoveDevice(reason="unregistered")))
        assert await reserve(registry, app, "b")
        registry.clock.move(RESERVED_MS / 1000)
        await registry.apply(register(app, "a"))
        assert not await reserve(registry, app, "b")
    compared = await registry.verify()
    assert compared.live == compared.rebuilt


async def test_a_rotated_secret_is_kept_until_its_time_or_the_next_rotation(registry: RunningRegistry) -> None:
    app = await registry.app()
    first = registry.keys.open(app.sealed_secret, app.appkey)
    rotate = RotateSecretRequest(appkey=app.appkey, keep_old_s=86_400)
    kept = (await registry.stub.RotateSecret(rotate)).app
    assert registry.keys.open(kept.old_sealed_secret, app.appkey) == first
    assert kept.old_secret_until_ms == registry.clock.now_ms() + DAY_MS
    again = await registry.stub.RotateSecret(rotate)
    assert registry.keys.open(again.app.sealed_secret, app.appkey) == again.secret_key
    assert again.app.old_sealed_secret == kept.sealed_secret
    dropped = (await registry.stub.UpdateApp(UpdateAppRequest(appkey=app.appkey, drop_old_secret=True))).app
    assert (dropped.old_sealed_secret, dropped.old_secret_until_ms) == (b"", 0)
    await registry.stub.RotateSecret(rotate)
    alone = (await registry.stub.RotateSecret(RotateSecretRequest(appkey=app.appkey))).app
    assert (alone.old_sealed_secret, alone.old_secret_until_ms) == (b"", 0)
    with pytest.raises(InputError, match="90 days"):
        await registry.stub.RotateSecret(RotateSecretRequest(appkey=app.appkey, keep_old_s=90 * 86_400 + 1))
    facts = [decode(record) for record in await records(registry.log, APPS.name)]
    assert [(fact.changed.action, list(fact.changed.settings)) for fact in facts if fact.HasField("changed")][1:] == [
        ("secret rotated", ["old_secret valid until 2026-09-22 14:13:20+00:00"]),
        ("secret rotated", ["old_secret valid until 2026-09-22 14:13:20+00:00"]),
        ("set", ["old_secret none"]),
        ("secret rotated", ["old_secret valid until 2026-09-22 14:13:20+00:00"]),
        ("secret rotated", []),
    ]


async def test_a_secret_that_was_replaced_meanwhile_is_not_replaced_again(registry: RunningRegistry) -> None:
    app = await registry.app()
    rotate = RotateSecretRequest(appkey=app.appkey, keep_old_s=86_400, replaces_digest=sealed_digest(app.sealed_secret))
    rotated = (await registry.stub.RotateSecret(rotate)).app
    assert rotated.old_sealed_secret == app.sealed_secret
    with pytest.raises(ConflictError, match="another secret key was made meanwhile"):
        await registry.stub.RotateSecret(rotate)
    assert registry.apps.get(app.appkey) == rotated


async def test_changed_limits_are_in_the_audit(registry: RunningRegistry) -> None:
    app = await limited_app(registry, requests_per_s=50, devices=7)
    networks = AllowFromChange(networks=["192.0.2.0/24"])
    await registry.stub.UpdateApp(UpdateAppRequest(appkey=app.appkey, allow_from=networks))
    lift = UpdateAppRequest(appkey=app.appkey, allow_from=AllowFromChange(), quotas=QuotasChange(requests_per_s=0))
    assert (await registry.stub.UpdateApp(lift)).app.quotas.devices == 7
    facts = [decode(record) for record in await records(registry.log, APPS.name)]
    assert [list(fact.changed.settings) for fact in facts if fact.HasField("changed")][1:] == [
        ["requests_per_s 50", "devices 7"],
        ["allow_from 192.0.2.0/24"],
        ["allow_from everywhere", "requests_per_s off"],
    ]


async def test_a_changed_identity_is_in_the_audit(registry: RunningRegistry) -> None:
    app = await limited_app(registry, devices=7)
    keys, tags = IdentityKeys(pems=[ProofKey().public_pem]), IdentityTags(tags=["user:*", "7"])
    for change in (
        IdentityChange(mode=IDENTITY_MODE_REQUIRE, keys=keys, tags=tags),
        IdentityChange(mode=IDENTITY_MODE_OFF),
        IdentityChange(keys=IdentityKeys(), tags=IdentityTags()),
    ):
        answer = await registry.stub.UpdateApp(UpdateAppRequest(appkey=app.appkey, identity=change))
    assert not answer.app.HasField("identity")
    facts = [decode(record) for record in await records(registry.log, APPS.name)]
    first, *others = [list(fact.changed.settings) for fact in facts if fact.HasField("changed")][2:]
    names = [line.partition(" ES256")[0] for line in first]
    assert names == ["identity require", "identity_keys", "identity_tags user:*,7"]
    assert others == [["identity off"], ["identity_keys none", "identity_tags none"]]


async def test_limits_out_of_range_change_nothing(registry: RunningRegistry) -> None:
    app = await limited_app(registry, devices=7)
    for change, told in (
        ({"quotas": QuotasChange(devices=2**32 - 1)}, "devices must be at most 2147483647; 0 removes the quota"),
        ({"allow_from": AllowFromChange(networks=["192.0.2.1/24"])}, "allow_from: '192.0.2.1/24' is no network: 192.0"),
        ({"allow_from": AllowFromChange(networks=["::1"] * 257)}, "allow_from must name at most 256 networks"),
    ):
        with pytest.raises(InputError, match=told):
            await registry.stub.UpdateApp(UpdateAppRequest(appkey=app.appkey, **change))
    assert registry.apps.get(app.appkey) == app
