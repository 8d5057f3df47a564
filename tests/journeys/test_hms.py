"""HMS from end to end: credentials, phones without a connection, Huawei's receipts, and what people see of them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from protos.registry.v1.apps_pb2 import CHANNEL_HMS
from services.domain.channel_receipts.receipts import ReceiptTags
from services.domain.master_key import MasterKey
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import Installation
from testkit.waiting import until
from tests.journeys.test_push import ANALYTICS_S, audited, message

PHONE, GONE = "IQAAAACy0tMAAAB", "80100000:x"


async def phone(server: AppServer, app: AppCredentials, address: str) -> str:
    """Register a phone that has an address at Huawei; return its token."""
    welcome = await server.device_request({"type": "hello", "appkey": app.appkey})
    identity = {"appkey": app.appkey, "token": welcome["token"], "key": welcome["key"]}
    frame = {"type": "set_address", "id": 1, **identity, "channel": "hms", "address": address}
    assert (await server.device_request(frame))["type"] == "ok"
    return str(welcome["token"])


def receipt(address: str, status: int, tag: str) -> dict[str, Any]:
    return {"appid": "1045", "token": address, "status": status, "biTag": tag, "timestamp": "1"}


@pytest.mark.long
@pytest.mark.parametrize("carillon", ["embedded"], indirect=True)  # with a console, which has the numbers by channel
async def test_a_push_reaches_phones_by_hms_and_their_receipts_count(
    carillon: Installation, app: AppCredentials, server: AppServer, tmp_path: Path
) -> None:
    file = tmp_path / "secret.txt"
    file.write_text("canary-secret-of-huawei\n")
    given = ("--hms-client-id", "1045", "--hms-client-secret", str(file), "--hms-receipts", "on")
    await asyncio.to_thread(carillon.carillon, "app", "set", app.appkey, *given)
    shown = json.loads(await asyncio.to_thread(carillon.carillon, "app", "show", app.appkey, "--json"))
    token = shown["channels"]["hms"]["receipts"]

    async def is_accepted() -> bool:
        command = ("app", "check-channel", app.appkey, "hms")
        text = await asyncio.to_thread(carillon.carillon, *command, check=False)
        return "the simulator on this machine, not Huawei," in text

    await until(is_accepted)
    first, second, gone = [await phone(server, app, address) for address in (f"{PHONE}1", f"{PHONE}2", GONE)]
    sent = await server.push(message(app, 1, "Guten Tag"), app.secret_key)
    await audited(carillon, sent["id"], "handed_over", "returned")

    url = f"{carillon.v2_url}/channels/v1/receipt/hms/{app.appkey}/{token}"
    keys = MasterKey.load(carillon.data / "master.key")
    tag = ReceiptTags(app.appkey, CHANNEL_HMS, keys).tag(sent["id"])
    async with httpx.AsyncClient() as vendor:
        forged = await vendor.post(f"{url}x", json={"statuses": [receipt(f"{PHONE}2", 0, tag)]})
        assert forged.status_code == 404
        told = [receipt(f"{PHONE}1", 0, tag), receipt(f"{PHONE}2", 2, tag)]
        told += [receipt(f"{PHONE}2", 0, f"{tag[:-1]}{'B' if tag[-1] == 'A' else 'A'}")]
        for _ in range(2):
            answer = await vendor.post(url, json={"statuses": told})
            assert (answer.status_code, answer.json()) == (200, {"errno": "0", "errmsg": "ok"})

    expected = {"channel": "hms", "simulated": True, "sent": 2, "received": 1, "shown": 0, "clicked": 0}

    async def audit_has_counts() -> bool:
        report = await audited(carillon, sent["id"], "handed_over")
        return [each for each in report["channels"] if each["channel"] == "hms"] == [expected]

    await until(audit_has_counts, ANALYTICS_S)

    team, token_file = f"Team of {app.appkey}", tmp_path / "token.txt"
    await asyncio.to_thread(carillon.carillon, "team", "add", team)
    await asyncio.to_thread(carillon.carillon, "team", "give-app", team, app.appkey)
    made = await asyncio.to_thread(carillon.carillon, "token", "create", team, "numbers", "--role", "sender", "--json")
    token_file.write_text(json.loads(made)["token"])
    listing = ("--url", carillon.console_url(), "--token-file", str(token_file), "address", "list", "--app", app.appkey)

    async def are_dead() -> bool:
        text = await asyncio.to_thread(carillon.carillon, *listing, "--dead", "--json", check=False)
        addresses = json.loads(text)["addresses"] if text.strip() else []
        reasons = {each["token"]: each["dead_reason"] for each in addresses}
        alone_or_not = "80300007 all tokens invalid", "80100000 invalid token"  # among the devices of its request
        return any(reasons == {gone: told, second: "2 app not installed"} for told in alone_or_not)

    await until(are_dead, ANALYTICS_S)
    listed = json.loads(await asyncio.to_thread(carillon.carillon, *listing, "--json"))["addresses"]
    assert [(each["token"], each["channel"]) for each in listed] == [(first, "hms")]
