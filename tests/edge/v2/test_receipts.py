"""Receipts of vendors: recorded as reports of the devices, or as the end of addresses; forged ones are refused."""

import json
from typing import Any

import pytest

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.registry.v1.apps_pb2 import CHANNEL_FCM, CHANNEL_HMS, App
from protos.registry.v1.devices_pb2 import DeviceCommand, SetAddress
from protos.registry.v1.registry_pb2 import ChannelChange, FindAddressesRequest, GetDevicesRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.addresses import address_hash
from services.domain.channel_credentials.stored import settings_of
from services.domain.topics import DEVICE_COMMANDS, decode, device_key
from services.errors import UnavailableError
from services.log.port import Partition
from services.log.topics import partition_of
from services.process.metrics import CHANNEL_RECEIPTS
from testkit.edge.role import PARTITIONS, EdgeInstallation
from testkit.waiting import until
from tests.edge.v2.test_device_frames import change_app

RECEIVED = OutcomeKind.OUTCOME_KIND_RECEIVED


async def app_with_receipts(installation: EdgeInstallation) -> tuple[App, str]:
    """Return an app and the path for its receipts."""
    app = await installation.app()
    fields = {"client_id": "1045", "client_secret": "secret", "receipts": "on"}
    changed = await change_app(installation, app, channels=[ChannelChange(channel=CHANNEL_HMS, fields=fields)])
    return changed, f"/channels/v1/receipt/hms/{app.appkey}/{settings_of(changed, CHANNEL_HMS)['receipts']}"


async def phone(installation: EdgeInstallation, app: App, token: str, address: str, channel: Any = CHANNEL_HMS) -> None:
    await installation.device(app, token)
    set_address = SetAddress(channel=channel, address=address)
    await installation.command(app.appkey, token, DeviceCommand(set_address=set_address))
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    request = FindAddressesRequest(appkey=app.appkey, hashes=[address_hash(channel, address)])

    async def is_found() -> bool:
        return list((await registry.FindAddresses(request)).tokens) == [token]

    await until(is_found)


def body(*statuses: tuple[str, int, int]) -> dict[str, Any]:
    """Return Huawei's call about (address, status, message id)."""
    return {
        "statuses": [
            {"appid": "1045", "token": address, "status": status, "biTag": f"carillon-{msgid}", "timestamp": "1"}
            for address, status, msgid in statuses
        ]
    }


async def cleared(installation: EdgeInstallation) -> list[DeviceCommand]:
    """Return the commands in the log that remove an address."""
    starts = {Partition(DEVICE_COMMANDS.name, number): 0 for number in range(PARTITIONS)}
    commands = [decode(record) for record in (await installation.log.select(starts, 10_000)).records]
    return [each for each in commands if each.HasField("clear_address")]


async def test_receipts_are_reports_of_the_devices_that_have_the_addresses(installation: EdgeInstallation) -> None:
    app, path = await app_with_receipts(installation)
    other, _ = await app_with_receipts(installation)
    for number in range(3):
        await phone(installation, app, f"phone-{number}", f"address-{number}")
    await phone(installation, other, "stranger", "of-another-app")
    await phone(installation, app, "google", "by-fcm", CHANNEL_FCM)
    before = CHANNEL_RECEIPTS.labels("hms", "6 notifications off")._value.get()
    told = body(
        ("address-0", 0, 5), ("address-1", 0, 5), ("address-1", 0, 6), ("address-2", 6, 5),
        ("of-another-app", 0, 5), ("by-fcm", 0, 5), ("unknown", 0, 5),
    )  # fmt: skip
    response = await installation.http.post(path, json=told)
    assert (response.status_code, response.json()) == (200, {"errno": "0", "errmsg": "ok"})
    expected = {
        (app.appkey, partition_of(device_key(app.appkey, token), PARTITIONS), msgid, RECEIVED)
        for token, msgid in (("phone-0", 5), ("phone-1", 5), ("phone-1", 6))
    }
    assert {(row[0], row[1], row[3], row[4]) for row in installation.reports.rows} == expected
    assert len(installation.reports.rows) == 3
    assert CHANNEL_RECEIPTS.labels("hms", "6 notifications off")._value.get() == before + 1
    assert await cleared(installation) == []


async def test_an_address_that_is_on_no_phone_any_more_is_dead(installation: EdgeInstallation) -> None:
    app, path = await app_with_receipts(installation)
    for number in range(2):
        await phone(installation, app, f"phone-{number}", f"address-{number}")
    told = body(("address-0", 2, 5), ("address-1", 102, 5), ("unknown", 5, 5))
    assert (await installation.http.post(path, json=told)).status_code == 200
    (command,) = await cleared(installation)
    assert (command.appkey, command.token) == (app.appkey, "phone-0")
    clear = command.clear_address
    assert (clear.channel, clear.dead_reason) == (CHANNEL_HMS, "2 app not installed")
    assert clear.only_hash == address_hash(CHANNEL_HMS, "address-0")
    assert installation.reports.rows == []


async def test_receipts_without_the_token_of_the_app_are_refused(installation: EdgeInstallation) -> None:
    app, path = await app_with_receipts(installation)
    _, of_other = await app_with_receipts(installation)
    await phone(installation, app, "phone", "address")
    start, _, token = path.rpartition("/")
    for wrong in (
        f"{start}/{'x' * len(token)}",
        f"{start}/",
        path.replace("/hms/", "/fcm/"),
        path.replace("/hms/", "/none/"),
        f"{start}/{of_other.rpartition('/')[2]}",
        path.replace(app.appkey, "1"),
    ):
        response = await installation.http.post(wrong, json=body(("address", 0, 5)))
        assert response.status_code == 404
    assert (await installation.http.get(path)).status_code == 405
    await change_app(installation, app, channels=[ChannelChange(channel=CHANNEL_HMS, fields={"receipts": "off"})])
    assert (await installation.http.post(path, json=body(("address", 0, 5)))).status_code == 404
    assert installation.reports.rows == []


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"statuses":[{"status":0}]}'])
async def test_what_is_no_call_of_the_vendor(installation: EdgeInstallation, content: bytes) -> None:
    _, path = await app_with_receipts(installation)
    assert (await installation.http.post(path, content=content)).status_code == 400
    response = await installation.http.post(path, content=b" " * (256 * 1024 + 1))
    assert response.status_code == 413


async def test_receipts_that_are_not_recorded_are_not_confirmed(installation: EdgeInstallation) -> None:
    app, path = await app_with_receipts(installation)
    await phone(installation, app, "phone", "address")
    installation.reports.error = UnavailableError("away")
    response = await installation.http.post(path, content=json.dumps(body(("address", 0, 5))))
    assert (response.status_code, response.headers["retry-after"]) == (503, "10")
    found = await RegistryServiceStub(installation.context.peers.all("registry")[0]).GetDevices(
        GetDevicesRequest(appkey=app.appkey, tokens=["phone"])
    )
    assert [each.address for each in found.devices[0].addresses] == ["address"]
