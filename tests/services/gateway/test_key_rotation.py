"""Device keys while the installation's keys rotate: both are accepted, and each welcome brings the one in force."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from protos.registry.v1.apps_pb2 import AppFact, KeyFingerprint
from protos.registry.v1.registry_pb2 import DropFormerKeysRequest, NoteKeyFingerprintRequest, RotateKeysRequest
from services.domain.apps import fingerprint_key
from services.domain.master_key import KeyPurpose, Keys, MasterKey, derive
from services.domain.role_context import follow_keys
from services.domain.topics import APPS
from services.log.port import NewRecord
from testkit.gateway.role import ANDROID, RunningGateway
from testkit.gateway.websocket import DeviceClient

OLD, NEW = MasterKey(bytes(32)), MasterKey(bytes([1] * 32))
DEVICES = KeyPurpose.DEVICES

Start = Callable[..., AbstractAsyncContextManager[RunningGateway]]


@pytest.fixture
def running(tmp_path: Path) -> Start:
    """Return a context manager that runs a gateway with the keys of these masters, and follows which is in force."""

    @asynccontextmanager
    async def run(*masters: int) -> AsyncIterator[RunningGateway]:
        keys = Keys({DEVICES: [derive(bytes([number] * 32), DEVICES) for number in masters]})
        gateway = RunningGateway(tmp_path, keys=keys)
        await gateway.open()
        for purpose in KeyPurpose:
            noted = KeyFingerprint(purpose=purpose.name, fingerprint=OLD.fingerprint(purpose))
            await gateway.registry.NoteKeyFingerprint(NoteKeyFingerprintRequest(fingerprint=noted))
        following = follow_keys(gateway.apps, keys)
        try:
            yield gateway
        finally:
            following.cancel()
            await asyncio.wait([following])
            await gateway.close()

    return run


async def rotate(gateway: RunningGateway) -> None:
    devices, secrets = NEW.fingerprint(DEVICES), NEW.fingerprint(KeyPurpose.SECRETS)
    await gateway.registry.RotateKeys(RotateKeysRequest(device_keys_fingerprint=devices, secrets_fingerprint=secrets))


def number_by(keys: MasterKey, welcome: dict[str, Any]) -> int | None:
    return keys.device_number(ANDROID, welcome["token"], welcome["key"])


async def again(gateway: RunningGateway, known: dict[str, Any]) -> dict[str, Any]:
    client = await DeviceClient.connect(gateway.port)
    return await client.hello(ANDROID, token=known["token"], key=known["key"])


async def test_connected_devices_come_again_and_get_a_key_by_the_new_one(running: Start) -> None:
    async with running(0, 1) as gateway:
        client = await DeviceClient.connect(gateway.port)
        connected, absent = await client.hello(ANDROID), await (await DeviceClient.connect(gateway.port)).hello(ANDROID)
        assert number_by(OLD, connected) is not None
        await rotate(gateway)
        assert await client.goodbye() == "draining"
        renewed = await again(gateway, connected)
        assert (renewed["new"], renewed["token"]) == (False, connected["token"])
        assert number_by(NEW, renewed) == number_by(OLD, connected)
        assert (await again(gateway, renewed))["key"] == renewed["key"]
        assert (await again(gateway, connected))["key"] == renewed["key"], "one that could not store it gets it again"
        fresh = await (await DeviceClient.connect(gateway.port)).hello(ANDROID)
        assert number_by(NEW, fresh) is not None
        gateway.clock.move(600)
        await gateway.registry.DropFormerKeys(DropFormerKeysRequest())
        assert (await again(gateway, renewed))["type"] == "welcome"
        assert (await again(gateway, absent))["reason"] == "unauthorized"


async def test_a_gateway_that_has_not_noticed_the_rotation_leaves_the_new_key_to_its_device(running: Start) -> None:
    async with running(0, 1) as gateway:
        known = await (await DeviceClient.connect(gateway.port)).hello(ANDROID)
        number = number_by(OLD, known)
        assert number is not None
        elsewhere = known | {"key": NEW.device_key(ANDROID, known["token"], number)}
        assert (await again(gateway, elsewhere))["key"] == elsewhere["key"]
        assert (await again(gateway, known))["key"] == known["key"]


async def test_a_gateway_without_the_new_key_gives_out_no_key_and_refuses_none(running: Start) -> None:
    """It ends soon. Until then devices try elsewhere; after `unauthorized` they would delete their keys."""
    async with running(0) as gateway:
        known = await (await DeviceClient.connect(gateway.port)).hello(ANDROID)
        number = number_by(OLD, known)
        assert number is not None
        elsewhere = known | {"key": NEW.device_key(ANDROID, known["token"], number)}
        noted = KeyFingerprint(
            purpose="DEVICES", fingerprint=NEW.fingerprint(DEVICES), predecessor=OLD.fingerprint(DEVICES)
        )
        fact = AppFact(key_fingerprint=noted)
        await gateway.log.append([NewRecord(APPS.name, 0, fingerprint_key(noted), fact.SerializeToString())])
        answers = [await again(gateway, elsewhere), await again(gateway, known)]
        answers.append(await (await DeviceClient.connect(gateway.port)).hello(ANDROID))
        assert [(answer["type"], answer["reason"]) for answer in answers] == [("goodbye", "draining")] * 3
        assert all(answer["retry_after_ms"] >= 100 for answer in answers)
