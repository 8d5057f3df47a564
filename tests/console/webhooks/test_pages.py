"""The page of an app's webhooks: made, tested, switched off, rotated, removed; what is shown once and what never."""

import asyncio
import re
from pathlib import Path

from services.process.clock import ManualClock
from testkit.waiting import until_holds
from testkit.webhook_receiver import answering, webhook_receiver
from tests.console.conftest import START_MS, Browser, ConsoleInstallation, running_console, text_of


async def page_of(browser: Browser, appkey: str, query: str = "") -> str:
    answer = await browser.get(f"/apps/{appkey}/webhooks{query}")
    assert answer.status_code == 200
    return text_of(answer)


async def until_page(browser: Browser, path: str, words: str) -> None:
    """Return once the page has the words."""
    async with asyncio.timeout(60):
        while words not in text_of(await browser.get(path)):
            await asyncio.sleep(0.02)


async def test_a_webhook_from_its_making_to_its_end(tmp_path: Path) -> None:
    async with (
        webhook_receiver() as receiver,
        running_console(tmp_path, ManualClock(START_MS), webhook_hosts=receiver.host) as console,
    ):
        appkey = await console.app("News", await console.team("News", head="administrator"))
        head = await console.logged_in("head")
        path = f"/apps/{appkey}/webhooks"
        assert "The app has no webhooks." in await page_of(head, appkey)
        fields = dict(re.findall(r'<input id="f-(url|labels)"([^>]*)>', (await head.get(path)).text))
        assert ("required" in fields["url"], "required" in fields["labels"]) == (True, False)
        made = await head.post(
            path, url=receiver.url, form="standard", labels="spring, sale", **{"kind:app.paused": "on"}
        )
        assert (made.status_code, made.headers["location"]) == (303, path)
        shown = await page_of(head, appkey)
        assert "shown only now" in shown
        assert re.search(r"whsec_[A-Za-z0-9+/=]{44}", shown)
        assert "whsec_" not in await page_of(head, appkey)
        await until_page(head, path, "works")
        assert f"http://{receiver.host} signed JSON app.paused of the pushes sale spring" in await page_of(head, appkey)
        assert "/hook" not in await page_of(head, appkey)
        (known,) = console.context.apps.with_webhooks
        webhook_id = known.webhooks[0].webhook_id

        async def change(name: str) -> str:
            answer = await head.post(path, webhook=webhook_id, change=name)
            assert answer.status_code == 303
            return text_of(await head.get(answer.headers["location"]))

        assert "The receiver took the test event." in await change("test")
        receiver.next = [answering(500)]
        assert "did not take the test event: HTTP 500" in await change("test")
        await head.post(f"/apps/{appkey}/pause", reason="leak", change="pause")
        await until_holds(lambda: [event["type"] for event in receiver.events].count("app.paused") == 1)
        assert "HTTP 204" in await page_of(head, appkey, f"?webhook={webhook_id}")
        assert "switched off" in await change("off")
        assert "Switch off" in await change("on")
        assert "shown only now" in await change("rotate")
        with console.servers["webhooks"].away():
            away = await page_of(head, appkey, f"?webhook={webhook_id}")
            assert "not known at present" in away
        assert "The app has no webhooks." in await change("remove")


async def test_the_page_of_a_teams_webhooks(tmp_path: Path) -> None:
    async with (
        webhook_receiver() as receiver,
        running_console(tmp_path, ManualClock(START_MS), webhook_hosts=receiver.host) as console,
    ):
        team_id = await console.team("News", head="administrator", reader="viewer")
        appkey = await console.app("News", team_id)
        head = await console.logged_in("head")
        path = f"/teams/{team_id}/webhooks"
        assert f'href="{path}"' in (await head.get(f"/teams/{team_id}")).text
        reader = await console.logged_in("reader")
        assert f'href="{path}"' not in (await reader.get(f"/teams/{team_id}")).text
        assert "The team has no webhooks." in text_of(await head.get(path))
        made = await head.post(path, url=receiver.url, form="standard", **{"kind:app.paused": "on"})
        assert (made.status_code, made.headers["location"]) == (303, path)
        assert "shown only now" in text_of(await head.get(path))
        await until_page(head, path, "works")
        (webhook,) = console.context.apps.webhooks_of_team(team_id)
        tested = await head.post(path, webhook=webhook.webhook_id, change="test")
        assert tested.headers["location"] == f"{path}?webhook={webhook.webhook_id}"
        await head.post(f"/apps/{appkey}/pause", reason="leak", change="pause")
        await until_holds(lambda: [event["type"] for event in receiver.events].count("app.paused") == 1)
        await until_page(head, f"{path}?webhook={webhook.webhook_id}", "HTTP 204")
        await head.post(path, webhook=webhook.webhook_id, change="remove")
        assert "The team has no webhooks." in text_of(await head.get(path))
        wrong = await head.post(path, url="http://hooks.example.org/")
        assert (wrong.status_code, "CARILLON_WEBHOOK_HOSTS" in text_of(wrong)) == (400, True)


async def test_mistakes_are_said_above_the_form(console: ConsoleInstallation) -> None:
    appkey = await console.app("News", await console.team("News", head="administrator"))
    head = await console.logged_in("head")
    await head.get(f"/apps/{appkey}/webhooks")
    for fields, told in (
        ({"url": "http://hooks.example.org/"}, "CARILLON_WEBHOOK_HOSTS"),
        ({"url": "https://hooks.example.org/", "form": "slack"}, "names the kinds"),
        ({"url": ""}, "endpoint"),
        ({"webhook": "unknown", "change": "off"}, "has no webhook"),
    ):
        answer = await head.post(f"/apps/{appkey}/webhooks", **fields)
        assert (answer.status_code, told in text_of(answer)) == (400, True), told
