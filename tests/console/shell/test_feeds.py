"""Live parts of pages: they change without a reload, share one request for all readers, and end with the rights."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from typing import Any
from unittest.mock import patch

import pytest

from console.overview.streams import HEARTBEAT_S
from console.shell.feeds import STREAMS_OF_A_USER, FeedQuestion, Feeds
from console.shell.renderer import Renderer, View
from protos.accounts.v1.accounts_pb2 import MEMBER_ROLE_UNSPECIFIED, MEMBER_ROLE_VIEWER
from protos.accounts.v1.service_pb2 import SetMemberRequest
from protos.analytics.v1.analytics_pb2 import AuditPushRequest, AuditPushResponse, BroadcastRow, StatisticsResponse
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from services.errors import BusyError
from services.process.clock import ManualClock
from testkit.services import started, stop
from testkit.waiting import run_ready_tasks, until, until_holds
from tests.console.announcements import announce, everything_works, some_time_later, words_of
from tests.console.conftest import OPERATOR, START_MS, ConsoleInstallation
from tests.console.event_stream import EventStream, event_stream

MSGID = 236244332179456


async def test_the_overview_moves_without_a_reload(console: ConsoleInstallation) -> None:
    await console.user("root", administrator=True)
    root = await console.logged_in("root")
    some_time_later(console)
    everything_works(console)
    async with event_stream(console.application, root, "/live") as stream:
        assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream")
        assert (stream.headers["x-accel-buffering"], stream.headers["cache-control"]) == ("no", "no-store")
        assert "set-cookie" not in stream.headers
        assert "Everything works." in words_of(await stream.next("state"))
        assert "delivery works" in words_of(await stream.next("numbers"))
        assert "delivery-host" in words_of(await stream.next("processes"))
        announce(console, delivery=None)
        console.clock.move(5)
        assert "delivery – away" in words_of(await stream.next("state"))
        assert "delivery away" in words_of(await stream.next("numbers"))


async def a_push(console: ConsoleInstallation) -> str:
    """Have a team News with a viewer, and its app with a push that moves; return the appkey."""
    appkey = await console.app("News", await console.team("News", viewer="viewer"))
    answer = AuditPushResponse(msgid=MSGID, appkey=appkey, kind="broadcast", audience_count=1200)
    answer.states.add(state="pending", devices=1200)
    console.analytics.pushes[MSGID] = answer
    console.analytics.statistics[appkey] = counted()
    return appkey


def counted(**counts: Any) -> StatisticsResponse:
    return StatisticsResponse(broadcasts=[BroadcastRow(msgid=MSGID, sent_ms=START_MS, target=1200, **counts)])


async def test_fifty_readers_of_a_push_cost_one_question(console: ConsoleInstallation) -> None:
    appkey = await a_push(console)
    browsers = [await console.logged_in("viewer")]
    for number in range(1, 5):
        await console.user(f"root{number}", administrator=True)
        browsers.append(await console.logged_in(f"root{number}"))
    path = f"/apps/{appkey}/pushes/{MSGID}/live"

    def questions() -> int:
        return sum(isinstance(asked, AuditPushRequest) for asked in console.analytics.asked)

    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(event_stream(console.application, browser, path))
            for browser in browsers * 10
        ]
        for stream in streams:
            assert "Accepted 1,200 100% Sent 0 0%" in words_of(await stream.next("numbers"))
        before = questions()
        console.analytics.statistics[appkey] = counted(sent=600)
        console.clock.move(3)
        for stream in streams:
            assert "Sent 600 50%" in words_of(await stream.next("numbers"))
        assert questions() == before + 1
        console.analytics.pushes[MSGID] = AuditPushResponse(msgid=MSGID, appkey=appkey, kind="broadcast")
        console.clock.move(3)
        for stream in streams:
            assert (await stream.end())[-1] == "enough"
    console.clock.move(60)
    await run_ready_tasks()
    before = questions()
    console.clock.move(60)
    await run_ready_tasks()
    assert questions() == before


async def test_the_list_of_pushes_moves_and_says_when_its_numbers_are_old(console: ConsoleInstallation) -> None:
    appkey = await a_push(console)
    viewer = await console.logged_in("viewer")
    async with event_stream(console.application, viewer, f"/pushes/live?appkey={appkey}") as stream:
        assert f"{MSGID}" in await stream.next("pushes")
        console.analytics.is_away = True
        console.clock.move(5)
        assert "the numbers shown are older ones" in await stream.next("late")
        console.analytics.is_away = False
        console.analytics.statistics[appkey] = counted(received=333)
        console.clock.move(5)
        assert "333 27.8%" in words_of(await stream.next("pushes"))
        assert await stream.next("late") == ""


async def test_readers_of_the_same_language_and_rights_share_the_text(console: ConsoleInstallation) -> None:
    await console.user("root", administrator=True)
    await console.app("Secret", await console.team("Secret"))
    appkey = await a_push(console)
    everything_works(console)
    rendered: list[str] = []
    parts = Renderer.parts

    def counted_parts(renderer: Renderer, template: str, view: View, values: Mapping[str, Any]) -> Iterator[str]:
        rendered.append(f"{template} {view.language.tag}")
        return parts(renderer, template, view, values)

    root, viewer = await console.logged_in("root"), await console.logged_in("viewer")
    reader = await console.logged_in("viewer")
    reader.http.headers["Accept-Language"] = "zh"
    path = f"/apps/{appkey}/pushes/{MSGID}/live"
    with patch.object(Renderer, "parts", counted_parts):
        async with AsyncExitStack() as stack:
            for browser in (viewer, viewer, root, reader, reader):
                stream = await stack.enter_async_context(event_stream(console.application, browser, path))
                await stream.next("timeline")
            templates = ("pushes/numbers.html", "pushes/timeline.html")
            assert Counter(rendered) == {f"{name} {tag}": 1 for name in templates for tag in ("en", "zh")}
            seen = []
            for browser in (viewer, root, viewer, root):
                stream = await stack.enter_async_context(event_stream(console.application, browser, "/live"))
                seen.append(words_of(await stream.next("numbers")))
            assert rendered.count("overview/numbers.html en") == 2
    assert ["Secret" in words for words in seen] == [False, True, False, True]
    assert ["delivery works" in words for words in seen] == [False, True, False, True]


async def test_what_happened_to_a_push_moves_with_its_numbers(console: ConsoleInstallation) -> None:
    appkey = await a_push(console)
    viewer = await console.logged_in("viewer")
    page = await viewer.get(f"/apps/{appkey}/pushes/{MSGID}")
    live = page.text[page.text.index("sse-connect") :]
    assert [part in live for part in ('sse-swap="numbers"', 'sse-swap="timeline"')] == [True, True]
    async with event_stream(console.application, viewer, f"/apps/{appkey}/pushes/{MSGID}/live") as stream:
        assert await stream.next("timeline") == ""
        answer = AuditPushResponse()
        answer.CopyFrom(console.analytics.pushes[MSGID])
        answer.timeline.add(event="sent", count=600, first_ms=START_MS, last_ms=START_MS)
        console.analytics.pushes[MSGID] = answer
        console.clock.move(3)
        assert "What happened Time Event Count Detail 2026-09-21 22:13:20 sent 600" in words_of(
            await stream.next("timeline")
        )


async def test_a_text_that_is_the_same_as_before_is_not_sent_again(console: ConsoleInstallation) -> None:
    appkey = await a_push(console)
    viewer = await console.logged_in("viewer")
    async with event_stream(console.application, viewer, f"/apps/{appkey}/pushes/{MSGID}/live") as stream:
        await stream.next("numbers")
        other = AuditPushResponse(audience="everyone, in other words")
        other.MergeFrom(console.analytics.pushes[MSGID])
        console.analytics.pushes[MSGID] = other
        console.clock.move(3)
        await run_ready_tasks()
        console.analytics.statistics[appkey] = counted(sent=600)
        console.clock.move(3)
        assert "Sent 600 50%" in words_of(await stream.next("numbers"))


async def ended(console: ConsoleInstallation, stream: EventStream) -> None:
    """Wait until the stream has told its page to reload."""
    ending = asyncio.create_task(stream.end())

    async def has_ended() -> bool:
        console.clock.move(HEARTBEAT_S)
        return ending.done()

    await until(has_ended)
    assert (await ending)[-1] == "over"


async def test_what_was_sent_to_ios_devices_does_not_move_any_more(console: ConsoleInstallation) -> None:
    appkey = await console.app("News", await console.team("News", viewer="viewer"), PLATFORM_IOS)
    answer = AuditPushResponse(msgid=MSGID, appkey=appkey, kind="broadcast", audience_count=2)
    answer.states.add(state="sent", devices=2)
    console.analytics.pushes[MSGID] = answer
    viewer = await console.logged_in("viewer")
    path = f"/apps/{appkey}/pushes/{MSGID}"
    assert "sse-connect" not in (await viewer.get(path)).text
    async with event_stream(console.application, viewer, f"{path}/live") as stream:
        assert (await stream.end())[-1] == "enough"


async def test_a_stream_ends_with_the_log_out(console: ConsoleInstallation) -> None:
    appkey = await a_push(console)
    viewer = await console.logged_in("viewer")
    async with event_stream(console.application, viewer, f"/apps/{appkey}/pushes/{MSGID}/live") as stream:
        await stream.next("numbers")
        await viewer.post("/log-out")
        await ended(console, stream)


async def test_a_stream_ends_with_the_session_and_with_the_rights(console: ConsoleInstallation) -> None:
    team_id = await console.team("News", viewer="viewer")
    appkey, user_id = await console.app("News", team_id), await console.user("other")
    member = SetMemberRequest(team_id=team_id, user_id=user_id, role=MEMBER_ROLE_VIEWER, origin=OPERATOR)
    await console.accounts.SetMember(member)
    viewer, other = await console.logged_in("viewer"), await console.logged_in("other")
    async with (
        event_stream(console.application, viewer, "/live") as leaving,
        event_stream(console.application, other, f"/pushes/live?appkey={appkey}") as losing,
    ):
        await leaving.next("state")
        await losing.next("pushes")
        assert (await viewer.post("/account/sessions")).status_code == 303
        await ended(console, leaving)
        removal = SetMemberRequest(team_id=team_id, user_id=user_id, role=MEMBER_ROLE_UNSPECIFIED, origin=OPERATOR)
        await console.accounts.SetMember(removal)
        await ended(console, losing)
    async with event_stream(console.application, console.browser(), "/live") as nobody:
        assert nobody.status == 401
    async with event_stream(console.application, other, f"/apps/{appkey}/pushes/{MSGID}/live") as refused:
        assert refused.status == 403


async def test_a_stream_without_events_sends_heartbeats(console: ConsoleInstallation) -> None:
    await console.app("News", await console.team("News", viewer="viewer"))
    viewer = await console.logged_in("viewer")
    async with event_stream(console.application, viewer, "/pushes/live") as stream:
        await stream.next("pushes")
        await run_ready_tasks()
        before = stream.comments
        for beat in range(1, 4):
            console.clock.move(HEARTBEAT_S)
            await until_holds(lambda beat=beat: stream.comments == before + beat)  # type: ignore[misc]


async def test_streams_end_when_the_console_stops_and_no_other_one_opens() -> None:
    feeds = Feeds(ManualClock(0), most_streams=2)
    running = await started(feeds)

    async def ask() -> str:
        return "answer"

    with (
        feeds.stream("user/1") as one,
        feeds.stream("user/2") as two,
        feeds.follow([FeedQuestion("key", ask, 5)]) as (feed,),
    ):
        with pytest.raises(BusyError):
            feeds.check_free()
        await run_ready_tasks()
        await stop([running])
        assert (one.ending.is_set(), two.ending.is_set()) == (True, True)
        await asyncio.wait([feed.asking])
    with pytest.raises(BusyError):
        feeds.check_free()


async def test_a_user_with_many_pages_loses_the_oldest_stream() -> None:
    feeds = Feeds(ManualClock(0), most_streams=1000)
    with ExitStack() as stack:
        streams = [stack.enter_context(feeds.stream("user/1")) for _ in range(STREAMS_OF_A_USER)]
        other = stack.enter_context(feeds.stream("user/2"))
        stack.enter_context(feeds.stream("user/1"))
        assert [stream.is_replaced for stream in streams] == [True] + [False] * (STREAMS_OF_A_USER - 1)
        assert not other.ending.is_set()
        assert feeds.streams == STREAMS_OF_A_USER + 1
    assert feeds.streams == 0
