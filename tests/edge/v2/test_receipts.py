"""Receipts of vendors: recorded as reports of the devices, or as the end of addresses; forged ones are refused."""

import base64
import hmac
import json
from typing import Any

import pytest

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.registry.v1.apps_pb2 import CHANNEL_FCM, CHANNEL_HMS, CHANNEL_OPPO, CHANNEL_XIAOMI, App, Channel
from protos.registry.v1.devices_pb2 import DeviceCommand, SetAddress
from protos.registry.v1.registry_pb2 import ChannelChange, FindAddressesRequest, GetDevicesRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.addresses import address_hash, channel_name
from services.domain.channel_credentials.stored import settings_of
from services.domain.channel_receipts.receipts import UNKNOWN_MARK, ReceiptTags, callback_of
from services.domain.master_key import MasterKey
from services.domain.topics import DEVICE_COMMANDS, decode, device_key
from services.errors import UnavailableError
from services.log.port import Partition
from services.log.topics import partition_of
from services.process.metrics import CHANNEL_RECEIPTS
from testkit.delivery.vendors import VENDORS
from testkit.edge.role import PARTITIONS, EdgeInstallation
from testkit.waiting import until
from tests.edge.v2.test_device_frames import change_app

KEYS = MasterKey(bytes(32))  # the installation's
RECEIVED = OutcomeKind.OUTCOME_KIND_RECEIVED


async def app_with_receipts(installation: EdgeInstallation, receipts: str = "on") -> tuple[App, str]:
    """Return an app and the path for its receipts."""
    app = await installation.app()
    fields = {"client_id": "1045", "client_secret": "secret", "receipts": receipts}
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


def body(app: App, *statuses: tuple[str, int, int]) -> dict[str, Any]:
    """Return Huawei's call about (address, status, message id) for messages of an app."""
    tags = ReceiptTags(app.appkey, CHANNEL_HMS, KEYS)
    return {
        "statuses": [
            {"appid": "1045", "token": address, "status": status, "biTag": tags.tag(msgid), "timestamp": "1"}
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
        app,
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
    told = body(app, ("address-0", 2, 5), ("address-1", 102, 5), ("unknown", 5, 5))
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
        response = await installation.http.post(wrong, json=body(app, ("address", 0, 5)))
        assert response.status_code == 404
    assert (await installation.http.get(path)).status_code == 405
    await change_app(installation, app, channels=[ChannelChange(channel=CHANNEL_HMS, fields={"receipts": "off"})])
    assert (await installation.http.post(path, json=body(app, ("address", 0, 5)))).status_code == 404
    assert installation.reports.rows == []


async def test_receipts_of_messages_of_other_apps_are_counted_alone(installation: EdgeInstallation) -> None:
    app, path = await app_with_receipts(installation)
    other, _ = await app_with_receipts(installation)
    await phone(installation, app, "phone", "address")
    forged = body(app, ("address", 2, 5))
    forged["statuses"][0]["biTag"] = forged["statuses"][0]["biTag"].replace("-5-", "-6-")
    before = CHANNEL_RECEIPTS.labels("hms", UNKNOWN_MARK)._value.get()
    for told in (forged, body(other, ("address", 0, 5), ("address", 2, 5))):
        assert (await installation.http.post(path, json=told)).status_code == 200
    assert (installation.reports.rows, await cleared(installation)) == ([], [])
    assert CHANNEL_RECEIPTS.labels("hms", UNKNOWN_MARK)._value.get() == before + 3


async def test_calls_must_be_signed_where_the_app_has_a_key(installation: EdgeInstallation) -> None:
    app, path = await app_with_receipts(installation, "signed")
    _, of_other = await app_with_receipts(installation, "signed")
    await phone(installation, app, "phone", "address")
    key, now_ms = settings_of(app, CHANNEL_HMS)["receipts_key"], installation.clock.now_ms()
    told = body(app, ("address", 0, 5))

    async def status_of(key: str, time_ms: int, url: str = path) -> int:
        value = base64.b64encode(hmac.digest(key.encode(), f"{time_ms}ncarillon".encode(), "sha256")).decode()
        header = {"x-huawei-callback-id": f"timestamp={time_ms}; nonce=n; value={value}"}
        return (await installation.http.post(url, json=told, headers=header)).status_code

    assert (await installation.http.post(path, json=told)).status_code == 403
    assert await status_of("x" * 32, now_ms) == 403
    assert await status_of(key, now_ms - 601_000) == 403
    assert await status_of(key, now_ms, of_other) == 403
    assert installation.reports.rows == []
    assert await status_of(key, now_ms) == 200
    assert [row[3] for row in installation.reports.rows] == [5]


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
    response = await installation.http.post(path, content=json.dumps(body(app, ("address", 0, 5))))
    assert (response.status_code, response.headers["retry-after"]) == (503, "10")
    found = await RegistryServiceStub(installation.context.peers.all("registry")[0]).GetDevices(
        GetDevicesRequest(appkey=app.appkey, tokens=["phone"])
    )
    assert [each.address for each in found.devices[0].addresses] == ["address"]


@pytest.mark.parametrize("channel", [CHANNEL_XIAOMI, CHANNEL_OPPO])
async def test_vendors_that_are_told_the_address_of_receipts_call_it_unsigned(
    installation: EdgeInstallation, channel: "Channel.ValueType"
) -> None:
    app, vendor = await installation.app(), VENDORS[channel_name(channel)]
    fields = {**vendor.fields, "receipts_url": "https://push.example.org"}
    changed = await change_app(installation, app, channels=[ChannelChange(channel=channel, fields=fields)])
    callback = callback_of(changed, channel, "https://push.example.org", KEYS)
    assert callback is not None
    for number in range(2):
        await phone(installation, app, f"phone-{number}", f"address-{number}", channel)
    mark = callback.tags.tag(5)
    if channel == CHANNEL_XIAOMI:
        rows = [{"param": mark, "type": kind, "targets": f"address-{n}"} for n, kind in enumerate((1, 16))]
        sent: dict[str, Any] = {"data": {"data": json.dumps({f"sdm{n}": row for n, row in enumerate(rows)})}}
    else:
        events = enumerate(("push_arrive", "regid_invalid"))
        sent = {"json": [{"param": mark, "eventType": event, "registrationIds": f"address-{n}"} for n, event in events]}
    path = callback.url.removeprefix("https://push.example.org")
    response = await installation.http.post(path, **sent)
    assert (response.status_code, response.content) == (200, b"")
    partition = partition_of(device_key(app.appkey, "phone-0"), PARTITIONS)
    assert [(row[0], row[1], row[3], row[4]) for row in installation.reports.rows] == [
        (app.appkey, partition, 5, RECEIVED)
    ]
    (command,) = await cleared(installation)
    assert (command.token, command.clear_address.channel) == ("phone-1", channel)
    forged = await installation.http.post(path[:-1] + ("a" if path[-1] != "a" else "b"), **sent)
    assert forged.status_code == 404
