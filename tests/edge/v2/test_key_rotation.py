"""Devices over HTTP and signed requests while the installation's keys rotate."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from protos.registry.v1.apps_pb2 import PLATFORM_IOS, AppFact, KeyFingerprint
from protos.registry.v1.registry_pb2 import DropFormerKeysRequest, NoteKeyFingerprintRequest, RotateKeysRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.apps import fingerprint_key
from services.domain.master_key import KeyPurpose, Keys, MasterKey, derive
from services.domain.role_context import follow_keys
from services.domain.topics import APPS
from services.log.port import NewRecord
from testkit.edge.http_device import HttpDevice, pushed_codes
from testkit.edge.role import BACKENDS, EdgeInstallation, edge_installation

OLD, NEW = MasterKey(bytes(32)), MasterKey(bytes([1] * 32))
TOKEN = "ab" * 32

Start = Callable[..., AbstractAsyncContextManager[EdgeInstallation]]


@pytest.fixture
def running(tmp_path: Path) -> Start:
    """Return a context manager that runs an edge with the keys of these masters, and follows which is in force."""

    @asynccontextmanager
    async def run(*masters: int) -> AsyncIterator[EdgeInstallation]:
        keys = Keys({each: [derive(bytes([number] * 32), each) for number in masters] for each in KeyPurpose})
        async with edge_installation(tmp_path, BACKENDS, keys=keys) as installation:
            for purpose in KeyPurpose:
                noted = KeyFingerprint(purpose=purpose.name, fingerprint=OLD.fingerprint(purpose))
                await registry(installation).NoteKeyFingerprint(NoteKeyFingerprintRequest(fingerprint=noted))
            following = follow_keys(installation.context.apps, keys)
            try:
                yield installation
            finally:
                following.cancel()
                await asyncio.wait([following])

    return run


def registry(installation: EdgeInstallation) -> Any:
    return RegistryServiceStub(installation.context.peers.all("registry")[0])


async def rotate(installation: EdgeInstallation) -> None:
    prints = [NEW.fingerprint(purpose) for purpose in (KeyPurpose.DEVICES, KeyPurpose.SECRETS)]
    request = RotateKeysRequest(device_keys_fingerprint=prints[0], secrets_fingerprint=prints[1])
    await registry(installation).RotateKeys(request)


async def test_a_hello_brings_the_new_key_and_a_code_of_before_opens_the_device(running: Start) -> None:
    async with running(0, 1) as installation:
        phone = HttpDevice(installation, await installation.app(PLATFORM_IOS), token=TOKEN)
        android = HttpDevice(installation, await installation.app())
        keys = {device: (await device.hello())["key"] for device in (phone, android)}
        await rotate(installation)
        for device, key in keys.items():
            assert (await device.send("get_device"))["type"] == "ok", "the former key is accepted"
            welcome = await device.hello()
            assert (welcome["key"] != key, welcome["new"]) == (True, False)
            assert (await device.send("get_device"))["type"] == "ok"
        lost = HttpDevice(installation, await installation.app(PLATFORM_IOS), token="cd" * 32)
        await lost.hello()
        del lost.identity["key"]
        assert (await lost.send("hello"))["reason"] == "possession"
        assert (await lost.hello(code=(await pushed_codes(installation))[-1]))["type"] == "welcome"
        installation.clock.move(600)
        await registry(installation).DropFormerKeys(DropFormerKeysRequest())
        assert (await android.send("get_device", key=keys[android]))["code"] == 401
        assert (await android.send("get_device"))["type"] == "ok"


async def test_signed_requests_are_accepted_before_and_after(running: Start) -> None:
    async with running(0, 1) as installation:
        app = await installation.app()
        await installation.device(app, "t")
        body = {
            "sendTo": {"appkey": {"android": app.appkey}, "userScope": 5, "token": {"android": "t"}},
            "msgStyle": {"basic": {"content": "hi", "is_notif": 1}, "android": {"title": "T"}},
        }
        answers = [(await installation.push(body, app.appkey))["result"]]
        await rotate(installation)
        answers.append((await installation.push(body, app.appkey))["result"])
        installation.clock.move(600)
        await registry(installation).DropFormerKeys(DropFormerKeysRequest())
        answers.append((await installation.push(body, app.appkey))["result"])
        assert answers == [0, 0, 0]


async def test_an_edge_without_the_new_key_gives_out_no_key_and_refuses_none(running: Start) -> None:
    async with running(0) as installation:
        app = await installation.app()
        device = HttpDevice(installation, app)
        await device.hello()
        number = OLD.device_number(app.appkey, device.identity["token"], device.identity["key"])
        assert number is not None
        noted = KeyFingerprint(
            purpose="DEVICES",
            fingerprint=NEW.fingerprint(KeyPurpose.DEVICES),
            predecessor=OLD.fingerprint(KeyPurpose.DEVICES),
        )
        fact = AppFact(key_fingerprint=noted)
        await installation.log.append([NewRecord(APPS.name, 0, fingerprint_key(noted), fact.SerializeToString())])
        new_key = NEW.device_key(app.appkey, device.identity["token"], number)
        answers = [await device.send("get_device", key=new_key), await device.send("hello")]
        answers.append(await HttpDevice(installation, app).send("hello"))
        assert [answer["code"] for answer in answers] == [500, 500, 500], answers
        assert (await device.send("get_device"))["type"] == "ok", "what it can judge it judges"
