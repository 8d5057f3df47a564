"""Devices whose keys were revoked: sent away at once, and told the same as everybody who has no right to come in."""

from pathlib import Path

from protos.registry.v1.apps_pb2 import Platform
from protos.registry.v1.registry_pb2 import RevokeAppKeysRequest, RevokeDeviceKeyRequest
from tests.roles.gateway.conftest import ANDROID, House
from tests.roles.gateway.scripted import Client


async def revoke(house: House, token: str) -> None:
    await house.registry.RevokeDeviceKey(RevokeDeviceKeyRequest(appkey=ANDROID, token=token))


async def test_a_connected_device_is_sent_away_and_the_others_stay(house: House) -> None:
    client, other = await Client.connect(house.port), await Client.connect(house.port)
    token = (await client.hello(ANDROID))["token"]
    await other.hello(ANDROID)
    await revoke(house, token)
    assert await client.goodbye() == "unauthorized"
    assert (await other.ask(type="get_device", id=1))["type"] == "ok"


async def test_a_revoked_key_is_refused_as_a_wrong_one_is(house: House) -> None:
    client = await Client.connect(house.port)
    known = await client.hello(ANDROID)
    await revoke(house, known["token"])
    await client.closed()
    ends = set()
    for key in (known["key"], known["key"][:-1] + ("A" if known["key"][-1] != "A" else "B")):
        stranger = await Client.connect(house.port)
        stranger.send(type="hello", appkey=ANDROID, token=known["token"], key=key)
        code = await stranger.closed()
        ends.add((*stranger.texts, code))
    ends.add((client.texts[-1], client.close_code))
    assert len(ends) == 1
    assert '"unauthorized"' in str(ends.pop()[0])


async def test_who_registers_anew_is_welcome(house: House) -> None:
    client = await Client.connect(house.port)
    old = await client.hello(ANDROID)
    await revoke(house, old["token"])
    await client.closed()
    again = await Client.connect(house.port)
    new = await again.hello(ANDROID)
    assert (new["type"], new["new"]) == ("welcome", True)
    assert new["token"] != old["token"]
    later = await Client.connect(house.port)
    assert (await later.hello(ANDROID, token=new["token"], key=new["key"]))["new"] is False


async def test_all_keys_of_an_app_and_of_no_other(house: House) -> None:
    await house.create_app("1000000003", Platform.PLATFORM_ANDROID)
    clients = [await Client.connect(house.port) for _ in range(20)]
    for client in clients:
        await client.hello(ANDROID)
    stranger = await Client.connect(house.port)
    await stranger.hello("1000000003")
    await house.registry.RevokeAppKeys(RevokeAppKeysRequest(appkey=ANDROID))
    assert {await client.goodbye() for client in clients} == {"unauthorized"}
    assert (await stranger.ask(type="get_device", id=1))["type"] == "ok"
    newcomer = await Client.connect(house.port)
    assert (await newcomer.hello(ANDROID))["type"] == "welcome"


async def test_a_gateway_that_starts_later_knows_what_was_revoked(tmp_path: Path) -> None:
    house = House(tmp_path)
    await house.open()
    client = await Client.connect(house.port)
    known = await client.hello(ANDROID)
    await revoke(house, known["token"])
    await client.closed()
    await house.close()
    again = House(tmp_path)
    await again.open()
    late = await Client.connect(again.port)
    late.send(type="hello", appkey=ANDROID, token=known["token"], key=known["key"])
    assert await late.goodbye() == "unauthorized"
    await again.close()
