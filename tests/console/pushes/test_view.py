"""The numbers of pushes: what their columns count, and what devices do not report."""

from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from tests.console.conftest import ConsoleInstallation, text_of
from tests.console.event_stream import event_stream
from tests.console.pushes.test_pages import MSGID, push_of_app, viewer_of


async def test_what_ios_devices_do_not_report_is_no_number(console: ConsoleInstallation) -> None:
    appkey = await push_of_app(console, platform=PLATFORM_IOS)
    row = console.analytics.statistics[appkey].broadcasts[0]
    row.received = row.shown = row.clicked = 0
    viewer = await viewer_of(console)
    listed = text_of(await viewer.get("/pushes"))
    assert "1,200 – – –" in listed
    assert "1,000" not in listed
    results = "Sent 1,100 91.7% Received not reported Shown not reported Clicked not reported"
    console.analytics.pushes[MSGID].states.add(state="pending", devices=3)
    path = f"/apps/{appkey}/pushes/{MSGID}"
    assert results in text_of(await viewer.get(path))
    async with event_stream(console.application, viewer, f"{path}/live") as stream:
        assert (await stream.next("numbers")).count("not reported") == 3
    row.received, row.shown = 1000, 900
    reported = text_of(await viewer.get("/pushes"))
    assert "1,200 1,000 83.3% 900 0" in reported, reported


async def test_the_last_column_counts_failed_expired_and_cancelled_devices(console: ConsoleInstallation) -> None:
    appkey = await push_of_app(console)
    row = console.analytics.statistics[appkey].broadcasts[0]
    row.failed, row.expired, row.cancelled = 100, 20, 3
    viewer = await viewer_of(console)
    listed = await viewer.get("/pushes")
    assert "Clicked Failed, expired or cancelled" in text_of(listed)
    link = f'<a id="push-{MSGID}-failures" href="/apps/{appkey}/pushes/{MSGID}/failures">123</a>'
    assert f'data-name="Failed, expired or cancelled">{link}' in listed.text
