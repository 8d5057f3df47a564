"""The legacy interfaces from end to end: signed request in, frame on the device."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from testkit.device import VirtualDevice
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import Installation
from testkit.waiting import until
from tests.journeys.conftest import SHARDS_BEFORE_RELEASES
from tests.journeys.test_push import ANALYTICS_S, audited, shown


@pytest.fixture
async def android(carillon: Installation) -> AsyncIterator[AppServer]:
    server = AppServer(carillon.android_url)
    yield server
    await server.close()


@pytest.fixture
async def ios(carillon: Installation) -> AsyncIterator[AppServer]:
    server = AppServer(carillon.ios_url)
    yield server
    await server.close()


@SHARDS_BEFORE_RELEASES
async def test_an_alias_receives_a_notification(
    carillon: Installation, app: AppCredentials, android: AppServer
) -> None:
    device = VirtualDevice(carillon.gateway_url, app.appkey)
    await device.connect()
    try:
        assert (await device.request({"type": "set_alias", "alias": "alice"}))["type"] == "ok"
        upgrade = {"title": "New version", "is_upgrade_download": 1, "download_url": "http://example.org/a.apk"}
        body = {"appkey": int(app.appkey), "message": "世", "is_notif": "1", "alias": ["alice", "bob"], "period": "600"}
        answer = await android.call("POST", "/push", {**body, **upgrade}, app.secret_key)
        assert answer["result"] == 0
        assert answer["details"] == [
            {"alias": "alice", "succ_num": 1, "fail_num": 0},
            {"alias": "bob", "succ_num": 0, "fail_num": 1},
        ]
        push = await shown(device)
    finally:
        await device.close()
    assert (push["msgid"], push["is_notif"], push["content"]) == (answer["msgid"], 1, "世")
    assert (push["title"], push["removable"]) == ("New version", True)
    assert push["click"] == {"action": 8, "param": "http://example.org/a.apk"}
    await audited(carillon, answer["msgid"], "command", "audience", "received")


@pytest.mark.long
@SHARDS_BEFORE_RELEASES
async def test_a_cancelled_broadcast_reaches_no_offline_device(
    carillon: Installation, app: AppCredentials, android: AppServer
) -> None:
    """A connected device has the broadcast, an offline one does not receive it; both receive the next one."""
    here, away = (VirtualDevice(carillon.gateway_url, app.appkey) for _ in range(2))
    await here.connect()
    await away.connect()
    await away.close()
    base = {"appkey": app.appkey, "is_notif": 0}
    sent = await android.call("POST", "/push", {**base, "message": "to be cancelled"}, app.secret_key)
    assert (await shown(here))["msgid"] == sent["msgid"]
    await audited(carillon, sent["msgid"], "received")
    cancel = {"appkey": app.appkey, "msgid": sent["msgid"]}
    for _ in range(2):
        answer = await android.call("DELETE", "/push", cancel, app.secret_key)
        assert answer == {"result": 0, "desc": "cancel succ"}
    kept = await android.call("POST", "/push", {**base, "message": "kept"}, app.secret_key)
    back = VirtualDevice(carillon.gateway_url, app.appkey, token=away.token, key=away.key)
    await back.connect()
    try:
        assert ((await shown(back))["msgid"], (await shown(here))["msgid"]) == (kept["msgid"], kept["msgid"])
    finally:
        await back.close()
        await here.close()
    await audited(carillon, sent["msgid"], "command", "received", "cancel command", "push cancelled")


@pytest.mark.long
async def test_receipts_are_read_page_by_page(carillon: Installation, app: AppCredentials, android: AppServer) -> None:
    """Polling from the position of the last answer yields each receipt once; a position can be read again.

    Only receipts that came in later than the delay may have another order then: here the delay is shorter than a batch.
    """
    first = {"appkey": app.appkey, "pos": "0", "reqno": 2}
    closed = await android.call("POST", "/getAckInfo", first, app.secret_key)
    assert closed == {"result": 400, "desc": "input error: getAckInfo is not enabled for this app"}
    carillon.carillon("app", "set", app.appkey, "--ack-info", "on")
    devices = [VirtualDevice(carillon.gateway_url, app.appkey) for _ in range(3)]
    for device in devices:
        await device.connect()
    body = {"appkey": app.appkey, "message": "m", "token": [device.token for device in devices]}
    details = (await android.call("POST", "/push", body, app.secret_key))["details"]
    for device in devices:
        await shown(device)
        await device.close()
    expected = {(entry["msgid"], entry["token"]) for entry in details}
    answers: list[dict[str, Any]] = []

    async def all_read() -> bool:
        pos = answers[-1]["pos"] if answers else "0"
        answer = await android.call("POST", "/getAckInfo", {**first, "pos": pos}, app.secret_key, statuses=(200, 503))
        if answer["result"] == 503:  # analytics has not read the newest records
            return False
        assert answer["result"] == 0, answer
        answers.append(answer)
        return sum(len(answer["ack_info_list"]) for answer in answers) >= len(expected)

    await until(all_read, ANALYTICS_S)
    for answer in answers:
        assert answer.keys() == {"result", "desc", "ack_info_list", "has_more", "pos"}
        assert (answer["result"], isinstance(answer["pos"], str), isinstance(answer["has_more"], bool)) == (
            0,
            True,
            True,
        )
        assert len(answer["ack_info_list"]) <= 2
    assert not answers[-1]["has_more"]
    read = [(ack["msgid"], ack["token"]) for answer in answers for ack in answer["ack_info_list"]]
    assert (len(read), set(read)) == (len(expected), expected)
    again = await android.call("POST", "/getAckInfo", {**first, "reqno": "1000"}, app.secret_key)
    assert sorted((ack["msgid"], ack["token"]) for ack in again["ack_info_list"]) == sorted(read)


@SHARDS_BEFORE_RELEASES
async def test_an_ios_token_is_registered_pushed_to_and_deleted(carillon: Installation, ios: AppServer) -> None:
    app = carillon.create_app("ios")
    device = {"appkey": app.appkey, "token": "cd" * 32}
    assert await ios.call("POST", "/register", device, app.secret_key) == {"result": 0, "desc": "add token done"}
    push = {**device, "message": {"title": "Hello", "body": "iPhone"}, "badge": 1, "sound": False}
    answer = await ios.call("POST", "/push", push, app.secret_key)
    assert answer["result"] == 0
    await audited(carillon, answer["msgid"], "command", "audience", "sent")
    assert await ios.call("DELETE", "/register", device, app.secret_key) == {"result": 0, "desc": "delete token done"}
    assert await ios.call("POST", "/push", push, app.secret_key) == {"result": 401, "desc": "token not found"}
