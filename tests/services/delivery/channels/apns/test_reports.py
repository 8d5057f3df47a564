"""Acknowledgements and reports of iOS devices: pushes carry their message id where the app asks for it, and what a
device tells counts only of a message that Apple accepted for it."""

from types import SimpleNamespace
from typing import Any

import pytest

from protos.delivery.v1.delivery_pb2 import RecordReportsRequest
from protos.delivery.v1.delivery_pb2_grpc import ReportsServiceStub
from protos.push.v1.push_pb2 import IosStyle, Message
from services.delivery.channels.apns import service
from services.delivery.channels.sockets.reports import ReportIntake
from services.domain.apns_payload import with_msgid
from testkit.delivery.gateway import report_columns
from testkit.delivery.ios import VALID_TOKENS, ControlledSimulator, IosHarness
from testkit.delivery.records import CLICKED, FAILED, RECEIVED, SENT, SHOWN, NumberedDevice, OutcomeRow

WITH_MSGID = Message(is_notif=True, content="hi", ios=IosStyle(carries_msgid=True))
COUNTING = Message(is_notif=True, content="hi", ios=IosStyle(carries_msgid=True, badge=-1))
TOLD = (RECEIVED, SHOWN, CLICKED)


def msgids(simulator: ControlledSimulator, token: str) -> list[int]:
    return [push.body["carillon"]["msgid"] for push in simulator.received if push.token == token]  # type: ignore[index]


async def tell(ios: IosHarness, kind: int, *messages: tuple[int, NumberedDevice]) -> None:
    """Hand in what devices tell, as front ends do; returns once it is in the log or refused."""
    request = RecordReportsRequest(reports=[report_columns(kind, messages, appkey=ios.appkey)])
    await ReportsServiceStub(ios.delivery.server.channel()).RecordReports(request)


async def test_a_broadcast_carries_one_id_that_is_filled_in_once_and_a_list_one_for_each_entry(
    ios: IosHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled: list[int] = []

    def counted(template: bytes, msgid: int) -> bytes:
        filled.append(msgid)
        return with_msgid(template, msgid)

    monkeypatch.setattr(service, "with_msgid", counted)
    async with ios.running() as simulator:
        one, other = await ios.register(*VALID_TOKENS[:2])
        await ios.register(*VALID_TOKENS[2:])
        broadcast = await ios.send(message=WITH_MSGID)
        await simulator.wait_accepted(len(VALID_TOKENS))
        assert {push.payload for push in simulator.received} == {
            b'{"aps":{"alert":"hi","mutable-content":1},"carillon":{"msgid":%d}}' % broadcast
        }
        assert filled == [broadcast]
        listed = await ios.send(one, other, one, id_count=3, message=COUNTING)
        await simulator.wait_accepted(len(VALID_TOKENS) + 3)
        assert sorted(msgids(simulator, VALID_TOKENS[0])) == [broadcast, listed, listed + 2]
        assert msgids(simulator, VALID_TOKENS[1]) == [broadcast, listed + 1]
        await ios.send(one)
        await simulator.wait_accepted(len(VALID_TOKENS) + 4)
        assert simulator.received[-1].body == {"aps": {"alert": "hello", "badge": 3}}


async def test_what_devices_tell_counts_once_and_only_of_messages_that_apple_accepted_for_them(ios: IosHarness) -> None:
    async with ios.running() as simulator:
        one, other = await ios.register(*VALID_TOKENS[:2])
        simulator.unknown_tokens = {VALID_TOKENS[1]}
        broadcast = await ios.send(message=WITH_MSGID)
        listed = await ios.send(one, message=WITH_MSGID)
        await ios.delivery.expect_outcomes(*(OutcomeRow(msgid, one, SENT) for msgid in (broadcast, listed)))
        await ios.delivery.expect_outcomes(OutcomeRow(broadcast, other, FAILED, "BadDeviceToken"))
        elsewhere = NumberedDevice(one.partition, one.number + 50)
        for _ in range(2):
            for kind in TOLD:
                await tell(ios, kind, (broadcast, one), (broadcast, other), (listed, one), (listed, other))
                await tell(ios, kind, (listed + 1, one), (broadcast, elsewhere))
            found = [OutcomeRow(msgid, one, kind) for kind in TOLD for msgid in (broadcast, listed)]
            assert sorted(await ios.delivery.outcomes(*TOLD)) == sorted(found)
        await ios.delivery.recorder().wait_recorded()
        before = ios.delivery.read_snapshot()
    ios.delivery.write_snapshot(before)
    async with ios.running():
        for kind in TOLD:
            await tell(ios, kind, (broadcast, one), (listed, one), (broadcast, other))
        assert sorted(await ios.delivery.outcomes(*TOLD)) == sorted(found)
    assert (await ios.delivery.verify()).equal


async def test_a_device_may_tell_before_the_log_has_that_apple_accepted_the_message(
    ios: IosHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ios.running():
        (device,) = await ios.register(VALID_TOKENS[0])
        recorder = ios.delivery.recorder()
        fanout: Any = SimpleNamespace(acknowledge=lambda *_: None)
        intake = ReportIntake(ios.delivery.store().state, fanout, recorder, lambda: 0)
        record_final = recorder.record_final

        def told_at_once(partition: int, appkey: str, msgid: int, number: int, *rest: Any, **more: Any) -> None:
            record_final(partition, appkey, msgid, number, *rest, **more)
            for kind in (*TOLD, *TOLD):
                intake.record(report_columns(kind, [(msgid, device)], appkey=appkey))

        monkeypatch.setattr(recorder, "record_final", told_at_once)
        msgid = await ios.send(device, message=WITH_MSGID)
        await ios.delivery.expect_outcomes(*(OutcomeRow(msgid, device, kind) for kind in (SENT, *TOLD)))
        monkeypatch.undo()
        await tell(ios, RECEIVED, (msgid, device))
        assert len(await ios.delivery.outcomes()) == 1 + len(TOLD)


async def test_a_former_process_may_have_had_apple_accept_what_the_device_has_and_the_log_does_not_say(
    ios: IosHarness,
) -> None:
    async with ios.running() as simulator:
        (device,) = await ios.register(VALID_TOKENS[0])
        simulator.refusals = [(503, "ServiceUnavailable")]
        msgid = await ios.send(device, message=WITH_MSGID)
        await simulator.wait_requests(1)
        await tell(ios, RECEIVED, (msgid, device))
        assert await ios.delivery.outcomes(RECEIVED) == []
    async with ios.running(hide_registry=True) as simulator:
        for _ in range(2):
            await tell(ios, RECEIVED, (msgid, device))
            assert await ios.delivery.outcomes(RECEIVED) == [OutcomeRow(msgid, device, RECEIVED)]
        ios.show_registry()
        await ios.advance_until(lambda: not ios.in_progress)
        assert simulator.tokens == []


async def test_an_app_that_does_not_ask_costs_no_memory(ios: IosHarness) -> None:
    async with ios.running():
        devices = await ios.register(*VALID_TOKENS)
        msgid = await ios.send()
        await ios.delivery.expect_outcomes(*(OutcomeRow(msgid, device, SENT) for device in devices))
        await tell(ios, RECEIVED, (msgid, devices[0]))
        assert await ios.delivery.outcomes(RECEIVED) == []
        assert list(ios.delivery.store().state.sent_messages.dump()) == []
