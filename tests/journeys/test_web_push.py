"""Web Push from end to end: a browser without a connection, a push service of its own, and its reports over HTTP."""

import asyncio
import json
from base64 import urlsafe_b64encode
from typing import Any

import httpx
import pytest

from services.process.clock import SystemClock
from services.webpush_simulator.server import WebPushSimulator
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import Installation
from testkit.services import running_services
from testkit.waiting import until
from tests.journeys.test_push import audited, message

BOUND_S = 60


def base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.mark.long
async def test_a_push_reaches_a_browser_that_has_no_connection(
    carillon: Installation, app: AppCredentials, server: AppServer
) -> None:
    push_service = WebPushSimulator(SystemClock())
    async with running_services([push_service]):
        await asyncio.to_thread(
            carillon.carillon, "app", "set", app.appkey, "--webpush", "new",
            "--webpush-contact", "mailto:push@example.org", "--webpush-hosts", push_service.authority,
        )  # fmt: skip

        async def key() -> str | None:
            async with httpx.AsyncClient(base_url=carillon.v2_url) as client:
                answer = (await client.get("/device/v1/webpush-key", params={"appkey": app.appkey})).json()
            found: str | None = answer.get("key")
            return found

        browser = push_service.subscribe("page", await until(key, BOUND_S))
        welcome = await server.device_request({"type": "hello", "appkey": app.appkey})
        identity = {"appkey": app.appkey, "token": welcome["token"], "key": welcome["key"]}
        address = {
            "channel": "webpush",
            "address": push_service.endpoint(browser),
            "keys": {"p256dh": base64url(browser.p256dh), "auth": base64url(browser.auth)},
        }
        answer = await server.device_request({"type": "set_address", "id": 1, **identity, **address})
        assert answer["type"] == "ok", answer

        sent = await server.push(message(app, 5, "Guten Tag", token={"android": welcome["token"]}), app.secret_key)
        async with asyncio.timeout(BOUND_S):
            await push_service.wait_for(1)
        (got,) = push_service.received
        assert got.plaintext is not None
        shown: dict[str, Any] = json.loads(got.plaintext)
        assert (shown["msgid"], shown["content"], shown["title"]) == (sent["id"], "Guten Tag", "T")
        assert got.message.topic == f"carillon-{sent['id']}"

        assert await server.device_request({"type": "ack", **identity, "msgids": [sent["id"]]}) == {"type": "ok"}
        for event in ("shown", "clicked"):
            report = {"type": "report", "id": 2, **identity, "event": event, "msgid": sent["id"]}
            assert (await server.device_request(report))["type"] == "ok"
        report = await audited(carillon, sent["id"], "claimed", "handed_over", "received", "shown", "clicked")
        counts = {entry["event"]: int(entry["count"]) for entry in report["timeline"]}
        assert {counts[event] for event in ("handed_over", "received", "shown", "clicked")} == {1}

        push_service.unsubscribe("page")
        again = await server.push(message(app, 5, "gone", token={"android": welcome["token"]}), app.secret_key)
        await audited(carillon, again["id"], "returned")
