"""Secrets of push channels, and addresses of devices: in no log, trace, metric, event of a webhook, or stored file."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from carillon.commands.role_calls import SOCKET_NAME
from protos.registry.v1.registry_pb2 import GetAppRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.channel_credentials.webpush import open_web_push
from services.domain.master_key import MasterKey
from services.fcm_simulator.accounts import new_account
from services.net.rpc.channel import connect
from services.process.clock import SystemClock
from services.webpush_simulator.server import WebPushSimulator
from services.webpush_simulator.subscriptions import base64url
from testkit.apns.keys import KEY_ID, TEAM_ID, canaries, files_containing, pem
from testkit.delivery import harmony
from testkit.delivery.fcm import account_file
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.otlp_receiver import OtlpReceiver, otlp_receiver
from testkit.installation.processes import Installation
from testkit.services import running_services
from testkit.waiting import until, until_holds
from testkit.webhook_receiver import WebhookReceiver, webhook_receiver
from tests.journeys.test_push import ANALYTICS_S, audited, message

SECRET_OF_HMS = "canary-secret-of-huawei"
IPHONE = "c4" * 32
ADDRESSES = {"fcm": "canaryF1:APA91b", "hms": "IQAAcanaryHms", "harmony": "MAMzLcanaryHarmony"}
DEAD = {"fcm": "404-UNREGISTERED:canary"}
LIMIT_S = 120


@pytest.fixture
def collector() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as receiver:
        yield receiver


@pytest.fixture
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with webhook_receiver() as receiver:
        yield receiver


@pytest.fixture
async def push_service() -> AsyncIterator[WebPushSimulator]:
    service = WebPushSimulator(SystemClock())
    async with running_services([service]):
        yield service


async def register(server: AppServer, app: AppCredentials, address: Mapping[str, Any]) -> None:
    welcome = await server.device_request({"type": "hello", "appkey": app.appkey})
    identity = {"appkey": app.appkey, "token": welcome["token"], "key": welcome["key"]}
    answer = await server.device_request({"type": "set_address", "id": 1, **identity, **address})
    assert answer["type"] == "ok", answer


async def set_up(
    carillon: Installation, directory: Path, push_service: WebPushSimulator
) -> tuple[list[bytes], AppCredentials, AppCredentials]:
    """Create an app for Android and one for iOS, with credentials of all channels; return the secrets and the apps."""
    account, huawei, apple = new_account("weather-1"), harmony.new_account(), pem()
    fields = ("project_id", "key_id", "sub_account", "private_key")
    files = {
        "fcm.json": account_file(account).decode(),
        "hms.txt": SECRET_OF_HMS,
        "harmony.json": json.dumps({name: getattr(huawei, name) for name in fields}),
        "apns.p8": apple,
    }
    for name, text in files.items():
        (directory / name).write_text(text)

    async def carillon_command(*command: str) -> str:
        return await asyncio.to_thread(carillon.carillon, *command)

    android = await asyncio.to_thread(carillon.create_app)
    ios = await asyncio.to_thread(carillon.create_app, "ios")
    await carillon_command(
        "app", "set", android.appkey, "--webpush", "new", "--webpush-contact", "mailto:push@example.org",
        "--webpush-hosts", push_service.authority, "--fcm-service-account", str(directory / "fcm.json"),
        "--hms-client-id", "1045", "--hms-client-secret", str(directory / "hms.txt"),
        "--harmony-service-account", str(directory / "harmony.json"),
    )  # fmt: skip
    await carillon_command(
        "app", "set", ios.appkey, "--apns-key", str(directory / "apns.p8"), "--apns-key-id", KEY_ID,
        "--apns-team", TEAM_ID,
    )  # fmt: skip
    channel = connect(f"unix:{carillon.data / SOCKET_NAME}")
    found = await RegistryServiceStub(channel).GetApp(GetAppRequest(appkey=android.appkey))
    await channel.close()
    opened = open_web_push(found.app, MasterKey.load(carillon.data / "master.key"))
    assert opened is not None
    keys = (account.private_key, huawei.private_key, apple, opened.key_pem)
    return [SECRET_OF_HMS.encode(), *(word for key in keys for word in canaries(key))], android, ios


@pytest.mark.long
async def test_neither_secrets_of_channels_nor_addresses_are_told(
    tmp_path: Path, collector: OtlpReceiver, receiver: WebhookReceiver, push_service: WebPushSimulator
) -> None:
    """Of five channels, while messages are handed over and refused. Addresses stand in the log and the registry."""
    carillon = Installation(tmp_path / "data", None)
    carillon.env |= {
        "CARILLON_WEBPUSH": "internet",
        "CARILLON_CHANNEL_GRACE_S": "5",
        "CARILLON_LOG_LEVEL": "DEBUG",
        "CARILLON_TRACES_URL": collector.url,
        "CARILLON_TRACES_RATIO": "1",
        "CARILLON_WEBHOOK_HOSTS": receiver.host,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    server = AppServer(carillon.v2_url)
    try:
        await asyncio.to_thread(carillon.start)
        secrets, android, ios = await set_up(carillon, tmp_path, push_service)
        for app in (android, ios):
            await asyncio.to_thread(carillon.carillon, "webhook", "add", app.appkey, receiver.url)

        async def key() -> str | None:
            async with httpx.AsyncClient(base_url=carillon.v2_url) as client:
                answer = await client.get("/device/v1/webpush-key", params={"appkey": android.appkey})
            found: str | None = answer.json().get("key")
            return found

        browser = push_service.subscribe("canary-subscription", await until(key, LIMIT_S))
        keys = {"p256dh": base64url(browser.p256dh), "auth": base64url(browser.auth)}
        endpoint = push_service.endpoint(browser)
        await register(server, android, {"channel": "webpush", "address": endpoint, "keys": keys})
        of_channels = [*ADDRESSES.items(), *DEAD.items()]
        for channel, address in of_channels:
            await register(server, android, {"channel": channel, "address": address})
        assert (await server.device_request({"type": "hello", "appkey": ios.appkey, "token": IPHONE}))["token"]

        sent = await server.push(message(android, 1, "Guten Tag"), android.secret_key)

        async def is_handed_over() -> bool:
            report = await audited(carillon, sent["id"], "handed_over", "returned")
            counts = [int(each["count"]) for each in report["timeline"] if each["event"] == "handed_over"]
            return sum(counts) == len(ADDRESSES) + 1

        await until(is_handed_over, ANALYTICS_S)
        to_iphones = {
            "sendTo": {"appkey": {"ios": ios.appkey}, "userScope": 2},
            "msgStyle": {"basic": {"content": "Guten Tag", "is_notif": 1}, "ios": {"badge": 3}},
        }
        await audited(carillon, (await server.push(to_iphones, ios.secret_key))["id"], "sent")
        kinds = {"message.handed_over", "address.dead"}
        await until_holds(lambda: kinds <= {event["type"] for event in receiver.events}, LIMIT_S)
        await until_holds(lambda: sum(b"delivery start" in each for each in collector.exported) > 0, LIMIT_S)
        async with httpx.AsyncClient() as client:
            metrics = (await client.get(f"http://127.0.0.1:{carillon.metrics_port}/metrics")).content
        shown = [carillon.carillon("app", "show", app.appkey, "--json").encode() for app in (android, ios)]
        await asyncio.to_thread(carillon.stop)
    finally:
        await server.close()
        carillon.close()
    said = carillon.output().read_bytes()
    assert b'"debug"' in said
    told = {
        "log": said,
        "metrics": metrics,
        "answers": b"".join(shown),
        "traces": b"".join(collector.exported),
        "webhooks": b"".join(posted.body for posted in receiver.posted),
    }
    assert all(told.values())
    of_devices = [each.encode() for each in (endpoint, *keys.values(), *(address for _, address in of_channels))]
    found = {place: [word for word in (*secrets, *of_devices) if word in text] for place, text in told.items()}
    assert not any(found.values()), found
    assert files_containing(carillon.data, secrets) == []
    keeping = {path.relative_to(carillon.data).parts[0] for path in files_containing(carillon.data, of_devices)}
    assert keeping <= {"log", "registry"}, keeping
