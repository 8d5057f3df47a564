"""FCM from end to end: a service account, a phone without a connection, its reports over HTTP, and the numbers."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from services.fcm_simulator.accounts import new_account
from testkit.delivery.fcm import account_file
from testkit.device import VirtualDevice
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import Installation
from testkit.waiting import until
from tests.journeys.test_push import ANALYTICS_S, audited, message, shown


async def phone(server: AppServer, app: AppCredentials, address: str) -> dict[str, Any]:
    """Register a phone that has an address on FCM; return how it names itself in frames."""
    welcome = await server.device_request({"type": "hello", "appkey": app.appkey})
    identity = {"appkey": app.appkey, "token": welcome["token"], "key": welcome["key"]}
    frame = {"type": "set_address", "id": 1, **identity, "channel": "fcm", "address": address}
    assert (await server.device_request(frame))["type"] == "ok"
    return identity


@pytest.mark.long
@pytest.mark.parametrize("carillon", ["embedded"], indirect=True)  # with a console, which has the numbers by channel
async def test_a_push_reaches_a_phone_by_fcm_and_counts_by_channel(
    carillon: Installation, app: AppCredentials, server: AppServer, tmp_path: Path
) -> None:
    account = new_account("weather-1")
    file = tmp_path / "account.json"
    file.write_bytes(account_file(account))
    await asyncio.to_thread(carillon.carillon, "app", "set", app.appkey, "--fcm-service-account", str(file))
    shown_app = await asyncio.to_thread(carillon.carillon, "app", "show", app.appkey, "--json")
    assert account.project_id in shown_app

    async def is_accepted() -> bool:
        """Whether delivery knows the account, and the simulator accepts it."""
        command = ("app", "check-channel", app.appkey, "fcm")
        return "the simulator on this machine" in await asyncio.to_thread(carillon.carillon, *command, check=False)

    await until(is_accepted)

    own = VirtualDevice(carillon.gateway_url, app.appkey)
    await own.connect()
    away, gone = await phone(server, app, "cXz1y:APA91bH"), await phone(server, app, "404-UNREGISTERED:x")
    sent = await server.push(message(app, 1, "Guten Tag"), app.secret_key)
    assert (await shown(own))["content"] == "Guten Tag"
    await own.close()
    await audited(carillon, sent["id"], "handed_over", "returned")
    assert await server.device_request({"type": "ack", **away, "msgids": [sent["id"]]}) == {"type": "ok"}
    for event in ("shown", "clicked"):
        report = {"type": "report", "id": 2, **away, "event": event, "msgid": sent["id"]}
        assert (await server.device_request(report))["type"] == "ok"

    by_fcm = {"channel": "fcm", "simulated": True, "sent": 1, "received": 1, "shown": 1, "clicked": 1}
    by_own = {"channel": "own", "simulated": False, "sent": 1, "received": 1, "shown": 1, "clicked": 0}

    async def audit_has_counts() -> dict[str, Any] | None:
        report = await audited(carillon, sent["id"], "claimed", "clicked")
        return report if _by_name(report["channels"]) == {"fcm": by_fcm, "own": by_own} else None

    report = await until(audit_has_counts, ANALYTICS_S)
    counts = {entry["event"]: int(entry["count"]) for entry in report["timeline"]}
    assert (counts["claimed"], counts["handed_over"], counts["returned"]) == (2, 1, 1)

    team, token_file = f"Team of {app.appkey}", tmp_path / "token.txt"
    await asyncio.to_thread(carillon.carillon, "team", "add", team)
    await asyncio.to_thread(carillon.carillon, "team", "give-app", team, app.appkey)
    made = await asyncio.to_thread(carillon.carillon, "token", "create", team, "numbers", "--role", "sender", "--json")
    token_file.write_text(json.loads(made)["token"])
    elsewhere = ("--url", carillon.console_url(), "--token-file", str(token_file))
    asked = ("statistics", app.appkey, "--kind", "broadcasts", "--push", str(sent["id"]), "--json")

    async def statistics_have_counts() -> bool:
        text = await asyncio.to_thread(carillon.carillon, *elsewhere, *asked, check=False)
        rows: list[dict[str, Any]] = json.loads(text)["rows"] if text.strip() else []
        return [_by_name(row["channels"]) for row in rows] == [{"fcm": by_fcm, "own": by_own}]

    await until(statistics_have_counts, ANALYTICS_S)
    listed = await asyncio.to_thread(
        carillon.carillon, *elsewhere, "address", "list", "--app", app.appkey, "--dead", "--json"
    )
    (dead,) = json.loads(listed)["addresses"]
    assert (dead["token"], dead["channel"], dead["dead_reason"]) == (gone["token"], "fcm", "UNREGISTERED")


def _by_name(channels: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["channel"]: each for each in channels}
