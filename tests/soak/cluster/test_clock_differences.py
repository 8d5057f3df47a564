"""Audiences and orders are judged within what the clocks of the processes of a cluster may differ."""

from typing import cast

import pytest
from pyroaring import BitMap

from protos.push.v1.push_pb2 import SendPush
from protos.registry.v1.devices_pb2 import Device
from services.log.port import Log
from tests.soak.checks import Client, Observations, audiences, order
from tests.soak.history import DeviceNumber, History, LoggedPush
from tests.soak.ledger import Change, Ledger, Outcome, Push, Shown, State

APP, TOKEN, MSGID = "1553091322", "a-token", 7
BEGUN_MS = 10_000
"""When the push was requested; its tag was set on the device a moment before."""


@pytest.mark.parametrize(
    ("started_ms", "clock_error_ms", "texts"),
    [
        (BEGUN_MS + 10, 0, []),
        (BEGUN_MS - 480, 1000, []),
        (BEGUN_MS - 480, 0, ["a device is in the audience of tag 3"]),
    ],
)
def test_a_start_is_later_than_recorded_where_the_clocks_may_differ(
    started_ms: int, clock_error_ms: int, texts: list[str]
) -> None:
    history = History(cast(Log, None), partitions=1, clock_error_ms=clock_error_ms)
    history.devices[APP, DeviceNumber(0, 1)] = Device(token=TOKEN)
    history.sent[MSGID] = LoggedPush(SendPush(msgid=MSGID, appkey=APP), 0, started_ms, b"")
    history.started[MSGID][0] = BitMap([1])
    history.started_ms[MSGID] = started_ms
    ledger = Ledger(lambda event: None)
    push = Push(1, "tag 3", (APP,), lambda state: 3 in state.tags, 86_400, 0, begun_ms=BEGUN_MS)
    push.outcome, push.ids = Outcome.ACCEPTED, {APP: MSGID}
    ledger.pushes.append(push)
    changes = [
        Change(1_000, 1_010, State(TOKEN)),
        Change(BEGUN_MS - 300, BEGUN_MS - 10, State(TOKEN, tags=frozenset({3}))),
    ]
    observed = Observations(ledger, history, {(APP, TOKEN): Client("a device", changes, {})})
    assert [violation.text for violation in audiences(observed)] == texts


@pytest.mark.parametrize(
    ("shown_ms", "texts"), [(BEGUN_MS + 1_001, []), (BEGUN_MS + 999, ["a device showed 8 before 7"])]
)
def test_a_push_may_come_after_a_later_one_that_was_shown_when_its_time_to_live_was_over(
    shown_ms: int, texts: list[str]
) -> None:
    history = History(cast(Log, None), partitions=1)
    for order_in_log, (msgid, period_s) in enumerate([(MSGID, 1), (MSGID + 1, 86_400)]):
        send = SendPush(msgid=msgid, appkey=APP, period_s=period_s)
        history.sent[msgid] = LoggedPush(send, order_in_log, BEGUN_MS, b"")
    shown = {msgid: Shown(msgid, "", shown_ms) for msgid in (MSGID + 1, MSGID)}
    observed = Observations(Ledger(lambda event: None), history, {(APP, TOKEN): Client("a device", [], shown)})
    assert [violation.text for violation in order(observed)] == texts
