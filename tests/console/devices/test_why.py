"""The question why a user did not get a push: the form, and the list of pushes to choose from."""

import re
from html import unescape

from protos.analytics.v1.analytics_pb2 import (
    AuditDeviceRequest,
    AuditDeviceResponse,
    AuditPushRequest,
    PushOnDevice,
    TimelineEntry,
)
from protos.analytics.v1.details_pb2 import Detail
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from protos.registry.v1.devices_pb2 import DeviceCommand, RemoveDevice
from services.domain.command_writer import CommandWriter, device_command
from tests.console.conftest import START_MS, ConsoleInstallation, text_of
from tests.console.pushes.test_pages import MSGID, device, push_of_app, viewer_of


async def test_a_question_without_an_answer_comes_back_in_the_form(console: ConsoleInstallation) -> None:
    appkey = await push_of_app(console)
    await device(console, appkey, "token-1", "alice")
    viewer = await viewer_of(console)
    for msgid in (str(MSGID + 1), "abc"):
        page = await viewer.get(f"/apps/{appkey}/why?name=alice&push={msgid}")
        assert (page.status_code, "No push of News has this message id." in text_of(page)) == (404, True)
        assert f'<option value="{appkey}" selected>' in page.text
        assert 'value="alice"' in page.text
        assert f'value="{msgid}"' in page.text
    path = f"/apps/{appkey}/why?name=alice&push={MSGID}"
    chinese = await viewer.get(path.replace(str(MSGID), "7"), **{"Accept-Language": "zh-CN"})
    assert "News 没有此消息 ID 的推送。" in text_of(chinese)
    console.analytics.pushes[MSGID].appkey = "another"
    assert "No push of News has this message id." in text_of(await viewer.get(path))


async def test_an_unknown_alias_comes_back_in_the_form(console: ConsoleInstallation) -> None:
    appkey = await push_of_app(console)
    viewer = await viewer_of(console)
    page = await viewer.get(f"/apps/{appkey}/why?name=mallory&push={MSGID}")
    assert (page.status_code, "No device of News has this token or alias now." in text_of(page)) == (404, True)
    assert 'action="/why"' in page.text
    assert 'value="mallory"' in page.text
    assert f'value="{MSGID}"' in page.text
    without_a_name = await viewer.get(f"/why?appkey={appkey}&name=&push={MSGID}")
    assert (without_a_name.status_code, f'value="{MSGID}"' in without_a_name.text) == (200, True)


def entry(event: str, msgid: int, time_ms: int, title: str = "", *, is_push: bool = False) -> TimelineEntry:
    about = Detail(push=msgid) if is_push else Detail(message=msgid)
    return TimelineEntry(
        event=event, msgid=msgid, first_ms=time_ms, last_ms=time_ms, count=1, details=[about], push_title=title
    )


async def test_the_pushes_to_choose_from_have_their_state_on_the_users_devices(console: ConsoleInstallation) -> None:
    appkey = await push_of_app(console)
    for token in ("token-1", "token-2"):
        await device(console, appkey, token, "alice")
    for number in (1, 2, 3):
        row = console.analytics.statistics[appkey].broadcasts.add(msgid=MSGID - number, sent_ms=START_MS - number)
        console.analytics.words[row.msgid] = (f"News {number}", "")
    console.analytics.devices["token-1"] = AuditDeviceResponse(
        timeline=[
            entry("audience", MSGID - 2, START_MS - 1, "News 2", is_push=True),
            entry("sent", MSGID - 2, START_MS),
            entry("received", MSGID - 2, START_MS),
            entry("audience", MSGID + 9, START_MS - 2, "Your parcel"),
            entry("dropped", MSGID + 9, START_MS),
        ]
    )
    console.analytics.devices["token-2"] = AuditDeviceResponse(
        timeline=[entry("audience", MSGID - 2, START_MS - 1, "News 2", is_push=True)], records_behind=4
    )
    viewer = await viewer_of(console)
    console.analytics.asked.clear()
    page = await viewer.get(f"/apps/{appkey}/why?name=alice")
    words = text_of(page)
    assert f"{MSGID} 2026-09-21 22:13:20 not sent" in words
    assert f"News 1 {MSGID - 1} 2026-09-21 22:13:19 not sent Your parcel {MSGID + 9}" in words
    assert "2026-09-21 22:13:19 dropped" in words
    states = "(received offline, waiting|offline, waiting received)"
    assert re.search(rf"News 2 \d+ 2026-09-21 22:13:19 {states} News 3", words)
    assert "The newest 4 records are not in these numbers yet." in words
    assert f"/apps/{appkey}/why?name=alice&amp;push={MSGID + 9}" in page.text
    kinds = [type(request) for request in console.analytics.asked]
    assert (kinds.count(AuditDeviceRequest), kinds.count(AuditPushRequest)) == (2, 0)


async def test_older_pushes_are_on_further_pages(console: ConsoleInstallation) -> None:
    """Each of the app's pushes and of those to the user alone is on one page."""
    appkey = await push_of_app(console)
    await device(console, appkey, "token-1", "alice")
    broadcasts = [(MSGID - number, START_MS - 10 * number) for number in range(30)]
    for msgid, sent_ms in broadcasts[1:]:
        console.analytics.statistics[appkey].broadcasts.add(msgid=msgid, sent_ms=sent_ms)
    unicasts = [(MSGID + 1 + number, START_MS - 9 * number) for number in range(30)]
    console.analytics.devices["token-1"] = AuditDeviceResponse(
        timeline=[entry("audience", msgid, time_ms) for msgid, time_ms in unicasts]
    )
    viewer = await viewer_of(console)
    path, listed = f"/apps/{appkey}/why?name=alice", []
    while path:
        page = await viewer.get(path)
        listed += re.findall(r"push=(\d+)", page.text)
        older = re.search(r'href="([^"]+before=[^"]+)"', page.text)
        path = unescape(older[1]) if older else ""
    expected = sorted([*broadcasts, *unicasts], key=lambda push: push[::-1], reverse=True)
    assert listed == [str(msgid) for msgid, _ in expected]
    assert (await viewer.get(f"/apps/{appkey}/why?name=alice&before=x")).status_code == 400


async def test_the_page_of_a_device_names_its_messages(console: ConsoleInstallation) -> None:
    """An iOS device that was sent a message does not wait for it: it reports nothing more."""
    appkey, token = await push_of_app(console, platform=PLATFORM_IOS), "0123456789abcdef" * 4
    await device(console, appkey, token, "alice", PLATFORM_IOS)
    timeline = [entry("audience", MSGID, START_MS, "<Storm>"), entry("sent", MSGID, START_MS)]
    console.analytics.devices[token] = AuditDeviceResponse(timeline=timeline)
    viewer = await viewer_of(console)
    path = f"/apps/{appkey}/device?name={token}"
    assert f"<Storm> {MSGID} sent" in text_of(await viewer.get(path))
    console.analytics.devices[token].timeline.pop()
    assert f"<Storm> {MSGID} offline, waiting" in text_of(await viewer.get(path))


async def test_a_device_that_was_removed_is_found_by_its_token_and_explained(console: ConsoleInstallation) -> None:
    appkey = await push_of_app(console)
    for token, reason, told in (
        ("token-1", "revoked by root@host", "its key was revoked by root@host"),
        ("token-2", "BadDeviceToken", "BadDeviceToken"),
    ):
        await device(console, appkey, token, "alice")
        writer = CommandWriter("test", console.log, console.peers, console.clock, 4)
        removal = DeviceCommand(appkey=appkey, token=token, remove=RemoveDevice(reason=reason))
        await writer.append_and_wait([device_command(removal)])
        console.analytics.pushes[MSGID].device.CopyFrom(PushOnDevice(token=token, in_audience=True))
        viewer = await viewer_of(console)
        page = await viewer.get(f"/apps/{appkey}/device?name={token}")
        words = text_of(page)
        assert (page.status_code, "This device is removed:" in words, "2026-" in words) == (200, True, True)
        why = text_of(await viewer.get(f"/apps/{appkey}/why?name={token}&push={MSGID}"))
        assert f"The device was removed at 2026-09-21 22:13:20 ({told}), so it does not get the push" in why
    gone = await viewer.get(f"/apps/{appkey}/device?name=alice")
    assert (gone.status_code, "No device is found" in text_of(gone)) == (404, True)
