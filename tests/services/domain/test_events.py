"""The events that records make: of which facts, with which ids, for whom; and what makes none."""

import struct
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from protos.accounts.v1.drafts_pb2 import (
    Draft,
    DraftApproved,
    DraftExpired,
    DraftFact,
    DraftRejected,
    DraftSent,
    DraftSubmitted,
    DraftWithdrawn,
)
from protos.delivery.v1.delivery_pb2 import (
    AppOutcomes,
    DeliveryFact,
    OutcomeKind,
    Outcomes,
    PushCancelled,
    PushFact,
    PushFailed,
    PushFinished,
    PushStarted,
)
from protos.push.v1.push_pb2 import CancelPush, Kind, PushCommand, SendPush
from protos.registry.v1.apps_pb2 import (
    CHANNEL_WEBPUSH,
    App,
    AppChanged,
    AppFact,
    BroadcastCount,
    EventKind,
    QuotaReached,
    Quotas,
)
from protos.registry.v1.devices_pb2 import AddressLost, AliasLost, Device, DeviceFact
from protos.runtime.v1.log_pb2 import Meta
from protos.scheduling.v1.scheduling_pb2 import CreateTask
from services.domain.events import NO_DEVICE, DraftApps, Event, EventTranslator, Wanted
from services.domain.topics import (
    APPS,
    DELIVERIES,
    DEVICES,
    DRAFTS,
    PUSH_COMMANDS,
    PUSHES,
    TOPICS,
)
from services.domain.webhooks import KIND_NAMES
from services.log.port import NewRecord, Record
from services.log.sqlite.log import SqliteLog
from services.log.topics import Topic

NOW_MS = 1_800_000_000_123
AT = "2027-01-15T08:00:00.123Z"
APP, OTHER, SILENT = "1000000001", "1000000002", "1000000003"
ALL: Wanted = {APP: frozenset(KIND_NAMES), OTHER: frozenset(KIND_NAMES)}
ID = bytes(range(16))


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SqliteLog]:
    opened = SqliteLog(tmp_path / "events.db", TOPICS, partitions=2)
    yield opened
    await opened.close()


def meta(time_ms: int = NOW_MS, event_id: bytes = ID) -> Meta:
    return Meta(event_id=event_id, time_ms=time_ms)


def events(topic: Topic, message: Any, wanted: Wanted = ALL, translator: EventTranslator | None = None) -> list[Event]:
    """Return the events of a record at offset 7 of partition 1, or 0 of a topic with one partition."""
    record = Record(topic.name, 0 if topic.single else 1, 7, b"", message.SerializeToString())
    apps = {APP: App(appkey=APP, quotas=Quotas(broadcasts_per_day=3))}
    made = translator or EventTranslator(apps.get, DraftApps(None))  # type: ignore[arg-type]
    return list(made.events(record, message, wanted))


def shown(found: Sequence[Event], token: str | None = None) -> list[tuple[str, dict[str, Any]]]:
    return [(event.as_json(token)["type"], event.as_json(token)["data"]) for event in found]


def test_an_accepted_push() -> None:
    send = SendPush(msgid=9, id_count=2, appkey=APP, kind=Kind.KIND_UNICAST, task_key="t1", label="spring")
    (event,) = events(PUSH_COMMANDS, PushCommand(meta=meta(), send=send))
    assert event.as_json() == {
        "id": ID.hex(),
        "type": "push.accepted",
        "timestamp": AT,
        "data": {"msgid": 9, "kind": "unicast", "messages": 2, "task": "t1", "label": "spring"},
    }
    assert (event.msgid, event.device) == (9, NO_DEVICE)
    assert not events(PUSH_COMMANDS, PushCommand(meta=meta(), cancel=CancelPush(msgid=9, appkey=APP)))


@pytest.mark.parametrize(
    ("fact", "expected"),
    [
        ({"started": PushStarted(count=3, expires_ms=NOW_MS)}, ("push.started", {"devices": 3, "expires_at": AT})),
        ({"started": PushStarted(count=0)}, None),
        ({"cancelled": PushCancelled()}, ("push.cancelled", {})),
        ({"failed": PushFailed(reason="too many groups")}, ("push.failed", {"reason": "too many groups"})),
        ({"finished": PushFinished()}, None),
        ({}, None),
    ],
)
def test_the_course_of_a_push(fact: dict[str, Any], expected: tuple[str, dict[str, Any]] | None) -> None:
    found = events(PUSHES, PushFact(meta=meta(), msgid=9, appkey=APP, partition=1, **fact))
    assert shown(found) == ([(expected[0], {"msgid": 9, "partition": 1} | expected[1])] if expected else [])


def outcomes(appkey: str, *rows: tuple[int, int, int], reasons: Sequence[str] = (), channel: int = 0) -> AppOutcomes:
    """Return outcomes of (msgid, number, kind) rows; each has the reason with its index, while there are some."""
    count = len(rows)
    return AppOutcomes(
        appkey=appkey,
        msgids=struct.pack(f"<{count}Q", *(row[0] for row in rows)),
        numbers=struct.pack(f"<{count}I", *(row[1] for row in rows)),
        kinds=bytes(row[2] for row in rows),
        times_ms=struct.pack(f"<{count}q", *range(NOW_MS, NOW_MS + count)),
        reason_indexes=bytes(index + 1 if index < len(reasons) else 0 for index in range(count)),
        reasons=reasons,
        channels=bytes([channel] * count) if channel else b"",
    )


def test_outcomes_have_an_event_each_and_an_id_by_their_row() -> None:
    kinds = [kind for kind in OutcomeKind.values() if kind]
    fact = DeliveryFact(
        meta=meta(),
        outcomes=Outcomes(
            apps=[
                outcomes(SILENT, (1, 1, OutcomeKind.OUTCOME_KIND_SENT), (1, 2, OutcomeKind.OUTCOME_KIND_SENT)),
                outcomes(APP, *((9, 4, kind) for kind in kinds), reasons=["mailbox full"], channel=CHANNEL_WEBPUSH),
            ]
        ),
    )
    found = events(DELIVERIES, fact)
    names = [OutcomeKind.Name(kind).removeprefix("OUTCOME_KIND_").lower() for kind in kinds]
    steps = ("claimed", "returned")
    assert [event.as_json()["type"] for event in found] == [f"message.{name}" for name in names if name not in steps]
    rows = [row for row, name in enumerate(names, 2) if name not in steps]
    assert [event.id for event in found] == [f"{ID.hex()}.{row}" for row in rows]
    assert found[0].as_json("token-a")["data"] == {
        "msgid": 9,
        "reason": "mailbox full",
        "channel": "webpush",
        "token": "token-a",
    }
    assert found[1].as_json(None)["data"] == {"msgid": 9, "channel": "webpush", "token": None}
    assert {event.device for event in found} == {(1, 4)}
    some = events(DELIVERIES, fact, {APP: [EventKind.EVENT_KIND_MESSAGE_EXPIRED]})
    assert some == [event for event in found if event.kind == EventKind.EVENT_KIND_MESSAGE_EXPIRED]
    assert len(some) == 1


def test_columns_of_different_lengths_are_no_outcomes() -> None:
    damaged = outcomes(APP, (9, 4, OutcomeKind.OUTCOME_KIND_SENT))
    damaged.kinds += b"\1"
    with pytest.raises(ValueError, match="zip"):
        events(DELIVERIES, DeliveryFact(meta=meta(), outcomes=Outcomes(apps=[damaged])))


def device(**fields: Any) -> DeviceFact:
    return DeviceFact(meta=meta(), device=Device(appkey=APP, token="a", number=4, **fields))


def test_devices_come_and_go() -> None:
    (registered,) = events(DEVICES, device(registered_ms=NOW_MS))
    assert shown([registered]) == [("device.registered", {"token": "a"})]
    (again,) = events(DEVICES, device(registered_ms=NOW_MS, alias="x"))
    assert again.id == registered.id
    assert not events(DEVICES, device(registered_ms=NOW_MS - 1))
    (removed,) = events(DEVICES, device(registered_ms=NOW_MS, removed_ms=NOW_MS, removed_reason="unregistered"))
    assert shown([removed]) == [("device.removed", {"token": "a", "reason": "unregistered"})]
    assert removed.id != registered.id
    later = events(DEVICES, DeviceFact(meta=meta(NOW_MS + 5, b"another"), device=device(removed_ms=NOW_MS).device))
    assert [event.id for event in later] == [removed.id]


def test_devices_lose_aliases_and_addresses() -> None:
    lost = AliasLost(alias="anna", lost_ms=NOW_MS, to_token="b")
    dead = AddressLost(channel=CHANNEL_WEBPUSH, lost_ms=NOW_MS, dead_reason="HTTP 410")
    moved = AddressLost(channel=CHANNEL_WEBPUSH, lost_ms=NOW_MS, to_token="b")
    found = events(DEVICES, device(alias_lost=lost, addresses_lost=[dead, moved]))
    assert shown(found) == [
        ("alias.evicted", {"token": "a", "alias": "anna", "to_token": "b"}),
        ("address.dead", {"token": "a", "channel": "webpush", "reason": "HTTP 410"}),
    ]
    lost.lost_ms = dead.lost_ms = NOW_MS - 1  # of an earlier record
    assert not events(DEVICES, device(alias_lost=lost, addresses_lost=[dead]))


def submitted(draft_id: str, *appkeys: str) -> DraftFact:
    pushes = [SendPush(appkey=appkey) for appkey in appkeys]
    draft = Draft(
        draft_id=draft_id,
        version=2,
        estimated_devices=70,
        expires_ms=NOW_MS,
        task=CreateTask(pushes=pushes),
    )
    return DraftFact(meta=meta(), draft_id=draft_id, submitted=DraftSubmitted(draft=draft))


async def test_drafts_wait_and_are_decided_for_each_of_their_apps(log: SqliteLog) -> None:
    drafts = DraftApps(log)
    translator = EventTranslator(lambda appkey: None, drafts)
    earlier = submitted("d0", OTHER).SerializeToString()
    await log.append([NewRecord(DRAFTS.name, 0, b"d0", earlier)])
    await drafts.catch_up(1)
    found = events(DRAFTS, submitted("d1", APP, OTHER, APP), translator=translator)
    data = {"draft": "d1", "version": 2, "devices": 70, "expires_at": AT}
    assert shown(found) == [("draft.waits", data)] * 2
    assert [(event.appkey, event.id) for event in found] == [(app, f"{ID.hex()}.{app}") for app in (APP, OTHER)]
    for decided, expected in (
        (DraftFact(meta=meta(), draft_id="d1", approved=DraftApproved()), {"decision": "approved"}),
        (DraftFact(meta=meta(), draft_id="d1", withdrawn=DraftWithdrawn()), {"decision": "withdrawn"}),
        (
            DraftFact(meta=meta(), draft_id="d1", rejected=DraftRejected(reason="too loud")),
            {"decision": "rejected", "reason": "too loud"},
        ),
    ):
        found = events(DRAFTS, decided, translator=translator)
        assert shown(found) == [("draft.decided", {"draft": "d1"} | expected)] * 2
    found = events(
        DRAFTS,
        DraftFact(meta=meta(), draft_id="d1", expired=DraftExpired(expires_ms=NOW_MS)),
        translator=translator,
    )
    assert shown(found) == [("draft.expired", {"draft": "d1", "expires_at": AT})] * 2
    (of_earlier,) = events(
        DRAFTS, DraftFact(meta=meta(), draft_id="d0", approved=DraftApproved()), translator=translator
    )
    assert of_earlier.appkey == OTHER
    assert not events(DRAFTS, DraftFact(meta=meta(), draft_id="d1", sent=DraftSent()), translator=translator)
    assert not events(DRAFTS, DraftFact(meta=meta(), draft_id="unknown", approved=DraftApproved()))


def test_apps_are_paused_alone_and_together() -> None:
    def changed(action: str, appkey: str) -> list[Event]:
        fact = AppFact(meta=meta(), changed=AppChanged(appkey=appkey, action=action, settings=["leak"]))
        return events(APPS, fact)

    assert shown(changed("paused", APP)) == [("app.paused", {"reason": "leak", "all_apps": False})]
    assert shown(changed("resumed", "")) == [("app.resumed", {"reason": "leak", "all_apps": True})] * 2
    assert len({event.id for event in changed("paused", "")}) == 2
    assert not changed("set", APP)
    assert not changed("paused", SILENT)


def test_a_quota_is_reached_once_a_day() -> None:
    def counted(count: int, day: str = "2027-01-15") -> list[Event]:
        return events(APPS, AppFact(meta=meta(), broadcasts=BroadcastCount(appkey=APP, day=day, count=count)))

    (reached,) = counted(3)
    assert shown([reached]) == [("quota.reached", {"quota": "broadcasts_per_day", "limit": 3, "day": "2027-01-15"})]
    assert not counted(2)
    assert [event.id for event in counted(3)] == [reached.id]
    assert counted(3, "2027-01-16")[0].id != reached.id
    fact = QuotaReached(appkey=APP, quota="devices", limit=9, day="2027-01-15")
    noted = events(APPS, AppFact(meta=meta(), quota_reached=fact))
    assert shown(noted) == [("quota.reached", {"quota": "devices", "limit": 9, "day": "2027-01-15"})]
