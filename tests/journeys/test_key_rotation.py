"""`carillon keys rotate` on a running installation: pushes go on, devices get other keys, and the old key ends."""

import asyncio
import contextlib
import json
import time
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyotp
import pytest

from carillon.children.process import address
from carillon_device import DeviceError
from protos.accounts.v1.service_pb2 import (
    LogInRequest,
    LogInResult,
    SetTotpRequest,
    StartTotpRequest,
    UseLinkRequest,
)
from protos.accounts.v1.service_pb2_grpc import LogInServiceStub
from protos.runtime.v1.log_pb2 import Origin
from services.apns_simulator.keys import public_key
from services.domain.apns_credentials import open_credentials
from services.domain.apps import AppDirectory
from services.domain.master_key import KeyPurpose, MasterKey
from services.domain.settings import Settings
from services.domain.topics import ACCOUNTS, TOPICS, decode
from services.errors import CarillonError
from services.log.point_in_time import until_ready
from services.log.port import Partition
from services.log.sqlite.log import SqliteLog
from services.net.rpc.channel import connect
from testkit.apns.keys import KEY_ID, TEAM_ID, pem
from testkit.device import VirtualDevice
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import Installation
from testkit.waiting import until
from tests.journeys.test_ios import TOKEN, event, start, to_all
from tests.journeys.test_push import message

PASSWORD = "correct horse battery 7"
FRONT_END = Origin(interface="console", address="192.0.2.7")


class Pushes:
    """Pushes to all devices of an app, one after the other, until it is stopped."""

    def __init__(self, server: AppServer, app: AppCredentials) -> None:
        self._server = server
        self._app = app
        self.sent: list[str] = []

    @contextlib.asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        stop = asyncio.Event()

        async def push() -> None:
            while not stop.is_set():
                content = f"push {len(self.sent)}"
                answer = await self._server.push(message(self._app, 1, content), self._app.secret_key)
                assert answer["result"] == 0, answer
                self.sent.append(content)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), 0.2)

        pushing = asyncio.create_task(push())
        try:
            yield
        finally:
            stop.set()
            await pushing


async def until_shown(device: VirtualDevice, contents: list[str]) -> None:
    """Wait until the device has shown each of these pushes, and none of them twice."""
    shown: Counter[str] = Counter()
    async with asyncio.timeout(60):
        while not shown.keys() >= set(contents):
            found = await device.events.get()
            if found["type"] == "push":
                shown[found["content"]] += 1
    assert set(shown.values()) == {1}


class Console:
    """Calls to accounts as the console makes them, for a user with a second factor."""

    def __init__(self, installation: Installation) -> None:
        self._channel = connect(address(Settings(data_dir=str(installation.data)), "accounts"))
        self._accounts: Any = LogInServiceStub(self._channel)
        self._totp = pyotp.TOTP("A" * 32)

    async def enrol(self, link_token: str) -> None:
        used = await self._accounts.UseLink(
            UseLinkRequest(link_token=link_token, new_password=PASSWORD, origin=FRONT_END)
        )
        origin = Origin(interface="console", address="192.0.2.7", actor=f"user/{used.user.user_id}")
        self._totp = pyotp.TOTP((await self._accounts.StartTotp(StartTotpRequest(origin=origin))).secret)
        await self._accounts.SetTotp(
            SetTotpRequest(secret=self._totp.secret, code=self._totp.now(), password=PASSWORD, origin=origin)
        )

    async def log_in(self, steps: int) -> bool:
        """Log in with the code of a later time step than before: each code counts once."""
        code = self._totp.at(int(time.time()), counter_offset=steps)
        request = LogInRequest(login="alice", password=PASSWORD, code=code, origin=FRONT_END)
        return bool((await self._accounts.LogIn(request)).result == LogInResult.LOG_IN_RESULT_OK)

    def again(self, installation: Installation) -> "Console":
        """Return the calls for the same user after a restart."""
        console = Console(installation)
        console._totp = self._totp
        return console

    async def close(self) -> None:
        await self._channel.close()


async def accepted(apple: Process) -> dict[str, Any]:
    """Return the next push that the simulator prints, but for one that it refused because of the time of day.

    Every half hour another provider token is due. If that is between two starts of delivery, the second one begins with
    a token that is too soon for Apple, and sends the push again with the one before.
    """
    arrived = await event(apple)
    return await event(apple) if arrived["reason"] == "TooManyProviderTokenUpdates" else arrived


@pytest.mark.long
async def test_the_keys_are_rotated_while_pushes_go_on(tmp_path: Path) -> None:
    installation, apns_key = Installation(tmp_path / "data", None), pem()
    installation.data.mkdir()
    known, authority = tmp_path / "public.pem", tmp_path / "authority.pem"
    known.write_text(public_key(apns_key))
    options = ("--port", "0", "--authority", str(authority), "--key", TEAM_ID, KEY_ID, str(known), "--json")
    apple = await start(installation, "apns-simulator", *options)
    assert apple.stderr is not None
    url = (await asyncio.wait_for(apple.stderr.readline(), 60)).decode().split()[-1]
    installation.env |= {"CARILLON_APNS_URL": url, "CARILLON_APNS_AUTHORITY": str(authority)}
    try:
        await asyncio.to_thread(installation.start)
        await rotate_while_pushes_go_on(installation, apple, apns_key)
    finally:
        installation.close()
        apple.terminate()
        await apple.wait()


async def rotate_while_pushes_go_on(installation: Installation, apple: Any, apns_key: str) -> None:
    def run(*arguments: str, check: bool = True) -> Any:
        said = installation.carillon(*arguments, "--json", check=check)
        return json.loads(said)

    app, ios = installation.create_app(), installation.create_app("ios")
    (installation.data / "AuthKey.p8").write_text(apns_key)
    own = ("--apns-key", "AuthKey.p8", "--apns-key-id", KEY_ID, "--apns-team", TEAM_ID)
    installation.carillon("app", "set", ios.appkey, *own)
    link = run("user", "add", "alice")["one_time_token"]
    console, server = Console(installation), AppServer(installation.v2_url)
    await console.enrol(link)
    phone = {"type": "hello", "appkey": ios.appkey, "token": TOKEN}
    phone_key = (await server.device_request(phone))["key"]

    devices = [VirtualDevice(installation.gateway_url, app.appkey) for _ in range(3)]
    for device in devices:
        await device.connect()
    connected, absent, lost = devices
    old_keys = {device: device.key for device in devices}
    for device in devices[1:]:
        await device.close()
    pushes = Pushes(server, app)
    async with pushes.going_on():
        first = await asyncio.to_thread(run, "keys", "rotate")
        assert (first["already_switched"], first["users_sealed"]) == (False, 1)
        assert first["apps_sealed"] >= 2
        again = await asyncio.to_thread(run, "keys", "rotate")
        assert again == first | {"already_switched": True, "apps_sealed": 0, "users_sealed": 0}

        async def has_new_key() -> bool:
            return connected.key != old_keys[connected]

        await until(has_new_key)
        back = VirtualDevice(installation.gateway_url, app.appkey, token=absent.token, key=old_keys[absent])
        await back.connect()
        assert back.key != old_keys[absent]
        since_back = len(pushes.sent) + 1
        renewed = await server.device_request(phone | {"key": phone_key})
        assert (renewed["type"], renewed["new"], renewed["key"] != phone_key) == ("welcome", False, True)

        async def all_are_back() -> bool:
            refused = await asyncio.to_thread(run, "keys", "rotate", "--finish", check=False)
            assert not refused["finished"]
            return bool(refused["devices_not_back"] == 1)

        await until(all_are_back)
        ended = await asyncio.to_thread(run, "keys", "rotate", "--finish", "--yes")
        assert (ended["finished"], ended["already_finished"], ended["devices_not_back"]) == (True, False, 1)
        assert (await asyncio.to_thread(run, "keys", "rotate", "--finish"))["already_finished"]
        late = VirtualDevice(installation.gateway_url, app.appkey, token=lost.token, key=old_keys[lost])
        with pytest.raises(DeviceError, match="does not accept this appkey, or this token"):
            await late.connect()
        await late.close()
    await until_shown(connected, pushes.sent)
    await until_shown(back, pushes.sent[since_back:])
    for step in range(2):
        assert await console.log_in(step)
        assert (await server.push(to_all(ios, f"after {step}"), ios.secret_key))["result"] == 0
        arrived = await accepted(apple)
        assert (arrived["status"], arrived["payload"]["aps"]["alert"]) == (200, f"after {step}")
        await console.close()
        await asyncio.to_thread(installation.stop)
        if not step:  # once more with the new master key in its place, with which records are signed from now on
            await asyncio.to_thread(installation.start)
            console = console.again(installation)
            await connected.connect()
    for device in (connected, back):
        await device.close()
    await server.close()
    for role in ("registry", "accounts"):
        assert run("replay", role, "--verify")["equal"]
    await old_key_opens_nothing(installation)


async def old_key_opens_nothing(installation: Installation) -> None:
    """Read the stopped installation's log: what is sealed in its state opens with the present master key alone."""
    old, new = (MasterKey((installation.data / name).read_bytes()) for name in ("master.key.former", "master.key"))
    assert not (installation.data / "master.key.next").exists()
    log = SqliteLog(installation.data / "log" / "events.db", TOPICS, partitions=8)
    try:
        apps = AppDirectory(log)
        await until_ready(apps.run)
        chains = [apps.key_chain(purpose.name) for purpose in KeyPurpose]
        assert [chain.in_force if chain else b"" for chain in chains] == [new.fingerprint(each) for each in KeyPurpose]
        for app in apps.all():
            assert new.open(app.sealed_secret, app.appkey)
            with pytest.raises(CarillonError):
                old.open(app.sealed_secret, app.appkey)
            if app.HasField("apns"):
                assert open_credentials(app, new)
                with pytest.raises(CarillonError):
                    open_credentials(app, old)
        facts = [decode(record) for record in (await log.select({Partition(ACCOUNTS.name, 0): 0}, 10_000)).records]
        users = {fact.user.user.user_id: fact.user.user for fact in facts if fact.HasField("user")}
        (user,) = (user for user in users.values() if user.sealed_totp_secret)
        assert new.open(user.sealed_totp_secret, f"user/{user.user_id}/totp")
        with pytest.raises(CarillonError):
            old.open(user.sealed_totp_secret, f"user/{user.user_id}/totp")
    finally:
        await log.close()
