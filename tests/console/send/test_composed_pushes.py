"""What was asked for while a part of the service was late is asked for again, and done once."""

from collections.abc import Callable
from typing import Any

import pytest

from console.send import draft_pages as drafts_pages
from console.send.composed_pushes import ComposedPushes
from services.errors import DeadlineError
from services.process.clock import HUNG_MS, WARY_MS
from testkit.faults.hung_process import RealTime
from tests.console.conftest import ConsoleInstallation, text_of
from tests.console.send.test_draft_pages import BROADCASTS, digest, draft_of, drafts, team_with
from tests.console.send.test_pages import hidden_of, reviewed, send, sender_of, sent

UNKNOWN = "It is not known yet whether the push was sent"
LoseAnswer = Callable[[Any, str], None]


@pytest.fixture
def lose_answer(monkeypatch: pytest.MonkeyPatch) -> LoseAnswer:
    """Return what lets the next call of a function have its effect, and then fail as one that was answered too late."""

    def lose(owner: Any, name: str) -> None:
        call, is_lost = getattr(owner, name), False

        async def called(*args: Any, **named: Any) -> Any:
            nonlocal is_lost
            answer = await call(*args, **named)
            if not is_lost:
                is_lost = True
                raise DeadlineError("accepted, but not yet applied everywhere; repeat the request")
            return answer

        monkeypatch.setattr(owner, name, called)

    return lose


async def test_a_push_is_sent_again_under_the_same_key(console: ConsoleInstallation, lose_answer: LoseAnswer) -> None:
    appkey, sender = await sender_of(console)
    _, hidden = await reviewed(sender, appkey, audience="everyone", content="To all")
    lose_answer(console.peers, "wait_applied")
    page = await send(sender, appkey, hidden, typed="3")
    assert (page.status_code, UNKNOWN in text_of(page), "Nothing was sent" in text_of(page)) == (503, True, False)
    again = hidden_of(page)
    assert again == {**hidden, "typed": "3", "again": "1"}
    with console.servers["targeting"].away():
        page = await send(sender, appkey, again)
        assert (UNKNOWN in text_of(page), hidden_of(page)) == (True, again)
    assert (await send(sender, appkey, again)).status_code == 303
    assert len(await sent(console)) == 1


async def test_a_console_that_has_hung_sends_nothing_for_some_seconds(
    console: ConsoleInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_time = RealTime(monkeypatch)
    appkey, sender = await sender_of(console)
    _, hidden = await reviewed(sender, appkey, audience="everyone", content="To all")
    real_time.pass_ms(2 * HUNG_MS)
    page = await send(sender, appkey, hidden, typed="3")
    assert (page.status_code, UNKNOWN in text_of(page), await sent(console)) == (503, True, [])
    real_time.pass_ms(WARY_MS)
    assert (await send(sender, appkey, hidden_of(page))).status_code == 303
    assert len(await sent(console)) == 1


async def test_once_the_key_is_too_old_the_reader_is_told_to_look_whether_it_was_sent(
    console: ConsoleInstallation, lose_answer: LoseAnswer
) -> None:
    appkey, sender = await sender_of(console)
    _, hidden = await reviewed(sender, appkey, stag="a", content="x")
    lose_answer(console.peers, "wait_applied")
    again = hidden_of(await send(sender, appkey, hidden))
    console.clock.move(10 * 60)
    page = await send(sender, appkey, again)
    assert (page.status_code, "Look whether it is among the pushes" in text_of(page)) == (400, True)
    assert hidden_of(page)["key"] != hidden["key"]


async def test_a_push_goes_to_the_test_devices_once(console: ConsoleInstallation, lose_answer: LoseAnswer) -> None:
    appkey, sender = await sender_of(console, devices=1)
    await sender.post(f"/apps/{appkey}/test-devices", device="token-0")
    _, hidden = await reviewed(sender, appkey, audience="everyone", content="x")
    lose_answer(console.peers, "wait_applied")
    page = await sender.post(f"/apps/{appkey}/send/test", **hidden)
    assert (page.status_code, UNKNOWN in text_of(page)) == (503, True)
    assert f'action="/apps/{appkey}/send/test"' in page.text
    done = await sender.post(f"/apps/{appkey}/send/test", **hidden_of(page))
    assert "Sent to the test devices: user-0." in text_of(done)
    assert len(await sent(console)) == 1


async def test_a_push_that_test_devices_got_is_said_to_be_sent_while_targeting_is_away(
    console: ConsoleInstallation,
) -> None:
    appkey, sender = await sender_of(console, devices=1)
    await sender.post(f"/apps/{appkey}/test-devices", device="token-0")
    _, hidden = await reviewed(sender, appkey, audience="everyone", content="x")
    with console.servers["targeting"].away():
        page = text_of(await sender.post(f"/apps/{appkey}/send/test", **hidden))
    assert ("Sent to the test devices: user-0." in page, "Nothing was sent" in page) == (True, False)
    assert len(await sent(console)) == 1


async def test_a_push_becomes_one_draft(console: ConsoleInstallation, lose_answer: LoseAnswer) -> None:
    team = await team_with(console, BROADCASTS)
    _, hidden = await reviewed(team.sender, team.appkey, audience="everyone", content="x")
    lose_answer(ComposedPushes, "submit")
    page = await send(team.sender, team.appkey, hidden, typed="2")
    assert (page.status_code, "Nothing was sent" in text_of(page)) == (503, False)
    assert (await send(team.sender, team.appkey, hidden_of(page))).status_code == 303
    assert len(await drafts(console)) == 1


async def test_an_approval_that_is_not_answered_is_not_said_to_be_without_effect(
    console: ConsoleInstallation, lose_answer: LoseAnswer
) -> None:
    team = await team_with(console, BROADCASTS)
    path = await draft_of(team.sender, team.appkey)
    shown = await digest(team.approver, path)
    lose_answer(drafts_pages, "decide_draft")
    page = text_of(await team.approver.post(f"{path}/approval", digest=shown))
    assert ("Nothing was sent" in page, "The state of the draft below says whether it was done" in page) == (
        False,
        True,
    )
