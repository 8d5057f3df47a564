"""Devices whose keys were revoked: disconnected at once, and refused like devices with a wrong key."""

from pathlib import Path

from protos.registry.v1.apps_pb2 import Platform
from protos.registry.v1.registry_pb2 import RevokeAppKeysRequest, RevokeDeviceKeyRequest
from testkit.gateway.role import ANDROID, RunningGateway
from testkit.gateway.websocket import DeviceClient


async def revoke(gateway: RunningGateway, token: str) -> None:
    await gateway.registry.RevokeDeviceKey(RevokeDeviceKeyRequest(appkey=ANDROID, token=token))


async def test_a_connected_device_is_disconnected_and_the_others_stay(gateway: RunningGateway) -> None:
    client, other = await DeviceClient.connect(gateway.port), await DeviceClient.connect(gateway.port)
    token = (await client.hello(ANDROID))["token"]
    await other.hello(ANDROID)
    await revoke(gateway, token)
    assert await client.goodbye() == "unauthorized"
    assert (await other.request(type="get_device", id=1))["type"] == "ok"


async def test_a_revoked_key_is_refused_like_a_wrong_one(gateway: RunningGateway) -> None:
    client = await DeviceClient.connect(gateway.port)
    known = await client.hello(ANDROID)
    await revoke(gateway, known["token"])
    await client.closed()
    endings = set()
    for key in (known["key"], known["key"][:-1] + ("A" if known["key"][-1] != "A" else "B")):
        refused = await DeviceClient.connect(gateway.port)
        refused.send(type="hello", appkey=ANDROID, token=known["token"], key=key)
        code = await refused.closed()
        endings.add((*refused.texts, code))
    endings.add((client.texts[-1], client.close_code))
    assert len(endings) == 1
    assert '"unauthorized"' in str(endings.pop()[0])


async def test_a_device_whose_key_was_revoked_can_register_anew(gateway: RunningGateway) -> None:
    client = await DeviceClient.connect(gateway.port)
    old = await client.hello(ANDROID)
    await revoke(gateway, old["token"])
    await client.closed()
    again = await DeviceClient.connect(gateway.port)
    new = await again.hello(ANDROID)
    assert (new["type"], new["new"]) == ("welcome", True)
    assert new["token"] != old["token"]
    later = await DeviceClient.connect(gateway.port)
    assert (await later.hello(ANDROID, token=new["token"], key=new["key"]))["new"] is False


async def test_revoking_all_keys_of_an_app_disconnects_no_other_app(gateway: RunningGateway) -> None:
    await gateway.create_app("1000000003", Platform.PLATFORM_ANDROID)
    clients = [await DeviceClient.connect(gateway.port) for _ in range(20)]
    for client in clients:
        await client.hello(ANDROID)
    of_other_app = await DeviceClient.connect(gateway.port)
    await of_other_app.hello("1000000003")
    await gateway.registry.RevokeAppKeys(RevokeAppKeysRequest(appkey=ANDROID))
    assert {await client.goodbye() for client in clients} == {"unauthorized"}
    assert (await of_other_app.request(type="get_device", id=1))["type"] == "ok"
    newcomer = await DeviceClient.connect(gateway.port)
    assert (await newcomer.hello(ANDROID))["type"] == "welcome"


async def test_a_gateway_that_starts_later_knows_earlier_revocations(tmp_path: Path) -> None:
    gateway = RunningGateway(tmp_path)
    await gateway.open()
    client = await DeviceClient.connect(gateway.port)
    known = await client.hello(ANDROID)
    await revoke(gateway, known["token"])
    await client.closed()
    await gateway.close()
    again = RunningGateway(tmp_path)
    await again.open()
    late = await DeviceClient.connect(again.port)
    late.send(type="hello", appkey=ANDROID, token=known["token"], key=known["key"])
    assert await late.goodbye() == "unauthorized"
    await again.close()
