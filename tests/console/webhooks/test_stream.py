"""GET /console/v1/events: events of an app as they come, on from a position, and for whom."""

import asyncio
import json
from typing import Any

import pytest

from console.webhooks import stream as streams
from protos.accounts.v1.service_pb2 import RevokeTokenRequest
from testkit.waiting import until_holds
from tests.console.conftest import OPERATOR, PREFIX, ConsoleInstallation, Programs
from tests.console.event_stream import EventStream, event_stream
from tests.console.shell.test_calls import actors

PATH = f"{PREFIX}/events"


def open_stream(console: ConsoleInstallation, token: str, query: str, **headers: str) -> Any:
    return event_stream(
        console.application, console.browser(), f"{PATH}?{query}", authorization=f"Bearer {token}", **headers
    )


async def next_event(stream: EventStream) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await stream.next("event"))
    return found


async def pause(console: ConsoleInstallation, programs: Programs, team_id: str, appkey: str, reason: str) -> None:
    program = await programs.program(team_id, "administrator")
    for change in ("pause", "resume"):
        assert (await program.post(f"/apps/{appkey}/{change}", {"reason": reason})).status_code == 200


async def test_events_are_streamed(console: ConsoleInstallation, programs: Programs) -> None:
    team_id = await console.team("News")
    appkey, foreign = await console.app("News", team_id), await console.app("Other", await console.team("Others"))
    token_id, token = await programs.token(team_id, "viewer")
    async with open_stream(console, token, f"appkey={appkey}&kind=app.paused") as stream:
        assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream")
        await stream.next("position")
        await pause(console, programs, team_id, appkey, "storm")
        event = await next_event(stream)
        assert (event["type"], event["data"]) == ("app.paused", {"reason": "storm", "all_apps": False})
    assert await actors(console, appkey) == [(f"token/{token_id}", "", 0)]
    for query, status in (
        (f"appkey={foreign}", 403),
        ("appkey=1", 403),
        ("", 400),
        (f"appkey={appkey}&kind=push.exploded", 400),
        (f"appkey={appkey}&msgid=x", 400),
        (f"appkey={appkey}&label=", 400),
        (f"appkey={appkey}&label=spring", 200),
        (f"appkey={appkey}&position=!", 400),
        (f"appkey={appkey}&since=7", 400),
        (f"appkey={appkey}&team_id={team_id}", 400),
        ("team_id=0000000000000000", 403),
    ):
        async with open_stream(console, token, query) as stream:
            assert stream.status == status, query
    async with open_stream(console, "wrong", f"appkey={appkey}") as stream:
        assert stream.status == 401
    with console.servers["webhooks"].away():
        async with open_stream(console, token, f"appkey={appkey}") as stream:
            assert stream.status == 503


async def test_the_events_of_a_team_are_streamed(console: ConsoleInstallation, programs: Programs) -> None:
    team_id = await console.team("News")
    appkeys = [await console.app(name, team_id) for name in ("News", "Weather")]
    token_id, token = await programs.token(team_id, "viewer")
    async with open_stream(console, token, f"team_id={team_id}&kind=app.paused") as stream:
        await stream.next("position")
        for appkey in appkeys:
            await pause(console, programs, team_id, appkey, "storm")
            event = await next_event(stream)
            assert (event["type"], event["data"]["appkey"]) == ("app.paused", appkey)
    for appkey in appkeys:
        assert (f"token/{token_id}", "", 0) in await actors(console, appkey)


async def test_a_stream_ends_with_its_token(
    console: ConsoleInstallation, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.02)
    team_id = await console.team("News")
    appkey = await console.app("News", team_id)
    token_id, token = await programs.token(team_id, "viewer")
    async with open_stream(console, token, f"appkey={appkey}") as stream:
        await stream.next("position")
        await until_holds(lambda: stream.comments > 0)
        await console.accounts.RevokeToken(RevokeTokenRequest(token_id=token_id, origin=OPERATOR))
        async with asyncio.timeout(60):
            await stream.end()
