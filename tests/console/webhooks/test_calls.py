"""Calls of `/console/v1` about webhooks, with a real registry, the real role and a receiver."""

import asyncio
from pathlib import Path

from services.process.clock import ManualClock
from testkit.waiting import until_holds
from testkit.webhook_receiver import WebhookReceiver, answering, webhook_receiver
from tests.console.conftest import START_MS, ConsoleInstallation, Program, Programs, running_console
from tests.console.shell.test_calls import app_of_team

URL = "https://hooks.example.org/in/canary"


async def made(program: Program, appkey: str, **body: object) -> dict[str, object]:
    answer = await program.post(f"/apps/{appkey}/webhooks", {"url": URL} | body)
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()
    return found


async def test_a_webhook_is_made_changed_and_removed(console: ConsoleInstallation, programs: Programs) -> None:
    _, appkey, head = await app_of_team(console, programs, "administrator", devices=0)
    new = await made(head, appkey, kinds=["device.removed"], msgids=[7], labels=["spring"])
    webhook = new["webhook"]
    assert isinstance(webhook, dict)
    assert str(new["secret"]).startswith("whsec_")
    assert {name: webhook[name] for name in ("url", "form", "kinds", "msgids", "labels", "disabled", "created_ms")} == {
        "url": URL,
        "form": "standard",
        "kinds": ["device.removed"],
        "msgids": [7],
        "labels": ["spring"],
        "disabled": False,
        "created_ms": START_MS,
    }
    path = f"/apps/{appkey}/webhooks/{webhook['webhook_id']}"
    changed = (await head.post(path, {"disabled": True, "kinds": []})).json()
    assert (changed["webhook"]["disabled"], changed["webhook"]["kinds"], "secret" in changed) == (True, [], False)
    rotated = (await head.post(f"{path}/secret", {"keep_old_s": 60})).json()
    assert rotated["secret"] != new["secret"]
    assert rotated["webhook"]["old_secret_until_ms"] == START_MS + 60_000
    assert (await head.post(f"{path}/resume")).status_code == 200
    (listed,) = (await head.get(f"/apps/{appkey}/webhooks")).json()["webhooks"]
    assert listed["webhook_id"] == webhook["webhook_id"]
    assert (await head.post(f"{path}/remove")).json() == {"webhook": None}
    assert (await head.get(f"/apps/{appkey}/webhooks")).json() == {"webhooks": []}


async def test_a_team_has_webhooks_of_its_own(console: ConsoleInstallation, programs: Programs) -> None:
    team_id, appkey, head = await app_of_team(console, programs, "administrator", devices=0)
    new = (await head.post(f"/teams/{team_id}/webhooks", {"url": URL, "kinds": ["draft.waits"]})).json()
    assert str(new["secret"]).startswith("whsec_")
    path = f"/teams/{team_id}/webhooks/{new['webhook']['webhook_id']}"
    assert (await head.post(path, {"disabled": True})).json()["webhook"]["disabled"] is True
    assert (await head.post(f"{path}/secret", {"keep_old_s": 60})).json()["secret"] != new["secret"]
    assert (await head.post(f"{path}/resume")).status_code == 200
    (listed,) = (await head.get(f"/teams/{team_id}/webhooks")).json()["webhooks"]
    assert (listed["webhook_id"], listed["kinds"]) == (new["webhook"]["webhook_id"], ["draft.waits"])
    assert (await head.get(f"/apps/{appkey}/webhooks")).json() == {"webhooks": []}
    async with asyncio.timeout(60):
        while (await head.get(f"{path}/attempts")).status_code == 404:
            await asyncio.sleep(0.02)
    assert (await head.get(f"{path}/attempts")).json() == {"attempts": []}
    console.clock.move(60)
    hour = {"from_ms": START_MS, "until_ms": START_MS + 30_000}
    assert (await head.post(f"{path}/resend", hour)).json() == hour
    assert (await head.post(f"/apps/{appkey}/webhooks/{new['webhook']['webhook_id']}/test")).status_code == 404
    assert (await head.post(f"{path}/remove")).json() == {"webhook": None}
    assert (await head.get(f"/teams/{team_id}/webhooks")).json() == {"webhooks": []}


async def test_wrong_requests_are_refused(console: ConsoleInstallation, programs: Programs) -> None:
    _, appkey, head = await app_of_team(console, programs, "administrator", devices=0)
    for body, status, told in (
        ({}, 400, "url"),
        ({"url": "http://hooks.example.org/"}, 400, "CARILLON_WEBHOOK_HOSTS"),
        ({"url": "https://10.0.0.1/"}, 400, "address"),
        ({"url": URL, "kinds": ["push.exploded"]}, 400, "kinds"),
        ({"url": URL, "form": "slack"}, 400, "names the kinds"),
        ({"url": URL, "secret": "mine"}, 400, "secret"),
    ):
        answer = await head.post(f"/apps/{appkey}/webhooks", body)
        assert (answer.status_code, told in answer.json()["detail"]) == (status, True), answer.text
    assert (await head.post(f"/apps/{appkey}/webhooks/none", {"disabled": True})).status_code == 404
    assert (await head.post(f"/apps/{appkey}/webhooks/none/test")).status_code == 404
    assert (await head.get(f"/apps/{appkey}/webhooks/none/attempts")).status_code == 404


async def test_a_receiver_is_tested_and_its_attempts_are_listed(tmp_path: Path) -> None:
    async with (
        webhook_receiver() as receiver,
        running_console(tmp_path, ManualClock(START_MS), webhook_hosts=receiver.host) as console,
    ):
        _, appkey, head = await app_of_team(console, Programs(console), "administrator", devices=0)
        new = await made(head, appkey, url=receiver.url)
        webhook = new["webhook"]
        assert isinstance(webhook, dict)
        path = f"/apps/{appkey}/webhooks/{webhook['webhook_id']}"
        await until_known(head, appkey)
        tested = (await head.post(f"{path}/test")).json()
        assert (tested["taken"], tested["attempt"]["status"], tested["attempt"]["events"]) == (True, 204, 1)
        receiver.next = [answering(500)]
        assert (await head.post(f"{path}/test")).json()["taken"] is False
        await head.post(f"/apps/{appkey}/pause", {"reason": "leak"})
        await receiver.until_events(2)
        assert receiver.events[-1]["type"] == "app.paused"
        await until_attempted(head, path, receiver)
        console.clock.move(60)
        hour = {"from_ms": START_MS, "until_ms": START_MS + 30_000}
        assert (await head.post(f"{path}/resend", hour)).json() == hour
        await until_holds(lambda: [event["type"] for event in receiver.events].count("app.paused") == 2)
        assert (await head.post(f"{path}/resend", {"from_ms": 5, "until_ms": 4})).status_code == 400
        with console.servers["webhooks"].away():
            (listed,) = (await head.get(f"/apps/{appkey}/webhooks")).json()["webhooks"]
            assert listed["state"] is None
            assert (await head.get(f"{path}/attempts")).status_code == 503


async def until_known(program: Program, appkey: str) -> None:
    """Return once the role webhooks knows the app's webhook."""
    async with asyncio.timeout(60):
        while (await program.get(f"/apps/{appkey}/webhooks")).json()["webhooks"][0]["state"] is None:
            await asyncio.sleep(0.02)


async def until_attempted(program: Program, path: str, receiver: WebhookReceiver) -> None:
    """Return once a request with an event is among the attempts. Test events are not."""
    async with asyncio.timeout(60):
        while not (found := (await program.get(f"{path}/attempts")).json()["attempts"]):
            await asyncio.sleep(0.02)
    assert (found[0]["status"], found[0]["answer"]) == (204, "HTTP 204")
    assert found[0]["message_id"] in {posted.headers["webhook-id"] for posted in receiver.taken}
