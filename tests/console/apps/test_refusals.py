"""Refused requests: the page of an app, the call, and the answer to why a push did not come."""

import pytest

from console.apps.refusals import refusal_reason
from protos.analytics.v1.analytics_pb2 import RefusedRequest
from tests.console.conftest import START_MS, ConsoleInstallation, Programs, text_of
from tests.console.pushes.test_pages import device, push_of_app, viewer_of

PAUSED = RefusedRequest(
    time_ms=START_MS + 1000,
    interface="v2",
    call="POST /v2/push",
    result=403,
    code="APP_PAUSED",
    answer="app 1 is paused",
    address="192.0.2.7",
    is_signed=True,
    left_out=3,
)
LISTING = RefusedRequest(
    time_ms=START_MS, interface="v2", call="POST /v2/timedtasklist", result=401, address="192.0.2.8"
)


async def test_the_page_lists_them_and_why_names_those_of_pushes(console: ConsoleInstallation) -> None:
    appkey = await push_of_app(console)
    await device(console, appkey, "token-1", "alice")
    viewer = await viewer_of(console)
    path = f"/apps/{appkey}/refused"
    assert f'href="{path}"' in (await viewer.get(f"/apps/{appkey}")).text
    assert "No request was refused" in text_of(await viewer.get(path))
    console.analytics.refusals[appkey] = [PAUSED, LISTING]
    words = text_of(await viewer.get(path))
    assert (
        "POST /v2/push (v2) the app was paused 3 more before it are not listed 403 app 1 is paused 192.0.2.7" in words
    )
    assert "192.0.2.8 not signed" in words
    why = text_of(await viewer.get(f"/apps/{appkey}/why?name=alice"))
    assert "Pushes that were not sent because the request was refused" in why
    assert why.count("the app was paused") == 1
    assert "the sign was wrong" not in why


async def test_programs_list_them(console: ConsoleInstallation, programs: Programs) -> None:
    team_id = await console.team("News")
    appkey = await console.app("News", team_id)
    console.analytics.refusals[appkey] = [PAUSED, LISTING]
    program = await programs.program(team_id, "viewer")
    answer = (await program.get(f"/apps/{appkey}/refused-requests?limit=1")).json()
    assert answer == {
        "refused_requests": [
            {
                "time_ms": START_MS + 1000,
                "interface": "v2",
                "call": "POST /v2/push",
                "result": 403,
                "code": "app_paused",
                "answer": "app 1 is paused",
                "address": "192.0.2.7",
                "signed": True,
                "left_out": 3,
            }
        ],
        "records_behind": 0,
    }


@pytest.mark.parametrize(
    ("result", "code", "is_signed", "reason"),
    [
        (401, "", False, "the sign was wrong: made with another secret key, such as one that was replaced"),
        (401, "", True, "the replay-safe signature was wrong"),
        (403, "", True, "the app's settings do not allow it"),
        (429, "OVER_TARGETS", True, "the app was over a quota"),
        (429, "", True, "too much was asked for at a time"),
        (400, "MISSING", True, "the request was wrong"),
        (503, "", True, "a part of the service did not answer"),
        (500, "", True, "the service had a fault"),
    ],
)
def test_each_result_has_a_reason(result: int, code: str, is_signed: bool, reason: str) -> None:
    assert refusal_reason(RefusedRequest(result=result, code=code, is_signed=is_signed), str) == reason
