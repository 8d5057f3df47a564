"""Webhooks of teams: the events of all apps that a team has, those of its drafts once, and none of other teams."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from protos.accounts.v1.drafts_pb2 import Draft, DraftApproved, DraftExpired, DraftFact, DraftSubmitted
from protos.push.v1.push_pb2 import SendPush
from protos.registry.v1.apps_pb2 import (
    EVENT_KIND_APP_PAUSED,
    EVENT_KIND_DRAFT_WAITS,
    EVENT_KIND_MESSAGE_RECEIVED,
    EVENT_KIND_PUSH_FINISHED,
    WEBHOOK_FORM_SLACK,
    AppChanged,
    AppFact,
    Webhook,
)
from protos.scheduling.v1.scheduling_pb2 import CreateTask
from protos.webhooks.v1.webhooks_pb2 import ListStatesRequest, SendTestRequest
from services.domain.topics import APPS, DRAFTS
from services.errors import InputError, NotFoundError
from services.log.port import NewRecord
from testkit.waiting import until_holds
from testkit.webhook_receiver import WebhookReceiver
from tests.services.webhooks.conftest import APP, NOW_MS, OTHER, TEAM, Installation
from tests.services.webhooks.test_push_ends import push_through
from tests.services.webhooks.test_service import verify

OTHER_TEAM = "9a9b0c6a4e1d7b55"


async def write_draft(installation: Installation, draft_id: str, **fact: Any) -> str:
    """Append a fact of a draft; return the id of the fact."""
    meta = installation.meta()
    record = DraftFact(meta=meta, draft_id=draft_id, **fact)
    await installation.log.append([NewRecord(DRAFTS.name, 0, draft_id.encode(), record.SerializeToString())])
    return meta.event_id.hex()


def submitted(team_id: str, *appkeys: str) -> DraftSubmitted:
    task = CreateTask(pushes=[SendPush(appkey=appkey) for appkey in appkeys])
    return DraftSubmitted(draft=Draft(team_id=team_id, task=task, version=1, estimated_devices=9, expires_ms=NOW_MS))


async def followed(installation: Installation, url: str, **fields: Any) -> Webhook:
    """Give the team a webhook; return it once the role has begun with it."""
    webhook = await installation.subscribe_team(url, **fields)
    await installation.until_followed(webhook)
    return webhook


async def test_a_team_gets_the_events_of_the_apps_that_it_has(
    installation: Installation, receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with installation.running():
        await installation.give_app(APP, TEAM)
        await installation.give_app(OTHER, OTHER_TEAM)
        webhook = await followed(installation, receiver.url, kinds=[EVENT_KIND_MESSAGE_RECEIVED])
        await installation.report(1, appkey=OTHER)
        expected = await installation.report(2, partition=1, first_number=99)
        await receiver.until_events(2)
        await installation.give_app(OTHER, TEAM)
        expected += await installation.report(1, appkey=OTHER)
        await receiver.until_events(3)
        await installation.give_app(APP, "")
        await installation.report(1)
        expected += await installation.report(1, appkey=OTHER)
        await receiver.until_events(4)
    assert [event["id"] for event in receiver.events] == expected
    assert [event["data"] for event in receiver.events] == [
        {"appkey": APP, "msgid": 7, "token": "token-1-99"},
        {"appkey": APP, "msgid": 7, "token": None},
        {"appkey": OTHER, "msgid": 7, "token": "token-0-0"},
        {"appkey": OTHER, "msgid": 7, "token": "token-0-0"},
    ]
    for posted in receiver.taken:
        body = verify(installation.secrets[webhook.webhook_id], posted, monkeypatch)
        assert body["data"].keys() == {"team_id", "events"}
        assert body["data"]["team_id"] == TEAM


async def test_a_draft_of_several_apps_is_told_to_its_team_once(
    installation: Installation, receiver: WebhookReceiver, other_receiver: WebhookReceiver
) -> None:
    async with installation.running():
        await installation.give_app(APP, TEAM)
        await installation.give_app(OTHER, TEAM)
        await followed(installation, receiver.url)
        await installation.until_followed(await installation.subscribe(other_receiver.url))
        first = await write_draft(installation, "d1", submitted=submitted(TEAM, APP, OTHER))
        await write_draft(installation, "d2", submitted=submitted(OTHER_TEAM, APP))
        second = await write_draft(installation, "d1", approved=DraftApproved())
        await write_draft(installation, "d3", submitted=submitted(TEAM, OTHER))
        await write_draft(installation, "d3", expired=DraftExpired(expires_ms=NOW_MS))
        await receiver.until_events(4)
        await other_receiver.until_events(3)
    told = [(event["type"], event["data"]["draft"], event["data"]["appkeys"]) for event in receiver.events]
    assert told == [
        ("draft.waits", "d1", [APP, OTHER]),
        ("draft.decided", "d1", [APP, OTHER]),
        ("draft.waits", "d3", [OTHER]),
        ("draft.expired", "d3", [OTHER]),
    ]
    assert [event["id"] for event in receiver.events[:2]] == [f"{first}.{TEAM}", f"{second}.{TEAM}"]
    of_app = [(event["type"], event["data"]["draft"], "appkeys" in event["data"]) for event in other_receiver.events]
    assert of_app == [("draft.waits", "d1", False), ("draft.waits", "d2", False), ("draft.decided", "d1", False)]


async def test_a_pause_of_all_apps_is_told_for_each_app_of_the_team(
    installation: Installation, receiver: WebhookReceiver
) -> None:
    async with installation.running():
        await installation.give_app(APP, TEAM)
        await installation.give_app(OTHER, TEAM)
        await followed(installation, receiver.url, kinds=[EVENT_KIND_APP_PAUSED])
        fact = AppFact(meta=installation.meta(), changed=AppChanged(action="paused", settings=["leak"]))
        await installation.log.append([NewRecord(APPS.name, 0, b"c", fact.SerializeToString())])
        await receiver.until_events(2)
    assert sorted(event["data"]["appkey"] for event in receiver.events) == [APP, OTHER]


async def test_the_ends_of_pushes_are_counted_for_the_apps_of_a_team(
    installation: Installation, receiver: WebhookReceiver
) -> None:
    async with installation.running():
        await installation.give_app(APP, TEAM)
        await followed(installation, receiver.url, kinds=[EVENT_KIND_PUSH_FINISHED])
        await push_through(installation, 7)
        await receiver.until_events(1)
    assert [(event["type"], event["data"]["appkey"]) for event in receiver.events] == [("push.finished", APP)]


async def test_a_chat_group_reads_the_names_of_team_and_apps(
    installation: Installation, receiver: WebhookReceiver
) -> None:
    def texts() -> list[str]:
        return [json.loads(posted.body)["text"] for posted in receiver.taken]

    async with installation.running():
        await installation.name_team("News")
        await installation.give_app(APP, TEAM)
        await followed(installation, receiver.url, form=WEBHOOK_FORM_SLACK, kinds=[EVENT_KIND_DRAFT_WAITS])
        await write_draft(installation, "d1", submitted=submitted(TEAM, APP))
        await until_holds(lambda: len(receiver.taken) == 1)
    (text,) = texts()
    assert text.startswith("Carillon, team News\n")
    assert APP in text


async def test_calls_name_an_app_or_a_team(installation: Installation, receiver: WebhookReceiver) -> None:
    async with installation.running():
        webhook = await followed(installation, receiver.url)
        (state,) = (await installation.stub.ListStates(ListStatesRequest(team_id=TEAM))).states
        assert state.webhook_id == webhook.webhook_id
        for other in (ListStatesRequest(team_id=OTHER_TEAM), ListStatesRequest(appkey=APP)):
            assert not (await installation.stub.ListStates(other)).states
        test = SendTestRequest(team_id=TEAM, webhook_id=webhook.webhook_id)
        assert (await installation.stub.SendTest(test)).taken
        posted: Mapping[str, Any] = json.loads(receiver.taken[0].body)["data"]
        assert posted["team_id"] == TEAM
        with pytest.raises(NotFoundError, match=f"team {OTHER_TEAM} has no webhook"):
            await installation.stub.SendTest(SendTestRequest(team_id=OTHER_TEAM, webhook_id=webhook.webhook_id))
        for wrong in (ListStatesRequest(), ListStatesRequest(appkey=APP, team_id=TEAM)):
            with pytest.raises(InputError, match="either an app or a team"):
                await installation.stub.ListStates(wrong)
