"""iOS delivery: pushes that Apple accepts."""

import asyncio

from protos.push.v1.push_pb2 import IosStyle, Message
from services.domain.device_protocol.possession import sealed_code
from testkit.delivery.ios import VALID_TOKENS, IosHarness
from testkit.delivery.records import SENT, START_MS, OutcomeRow
from testkit.services import TIMEOUT_S

INCREMENT_BADGE = Message(is_notif=True, content="one more", ios=IosStyle(badge=-1))


async def test_an_accepted_push_is_recorded_as_sent(ios: IosHarness) -> None:
    async with ios.running() as simulator:
        devices = await ios.register(*VALID_TOKENS)
        msgid = await ios.send()
        await ios.delivery.expect_outcomes(*(OutcomeRow(msgid, device, SENT) for device in devices))
        assert sorted(simulator.tokens) == VALID_TOKENS
        received = simulator.received[0]
        assert received.headers["apns-topic"] == "com.example.weather"
        assert received.headers["apns-collapse-id"] == str(msgid)
        assert received.body == {"aps": {"alert": "hello", "badge": 3}}
        async with asyncio.timeout(TIMEOUT_S):
            while ios.delivery.store().state.started:
                await asyncio.sleep(0)
    assert (await ios.delivery.verify()).equal


async def test_each_entry_of_a_list_has_its_own_message_id(ios: IosHarness) -> None:
    async with ios.running() as simulator:
        one, other = await ios.register(*VALID_TOKENS[:2])
        first = await ios.send(one, other, one, id_count=3)
        await ios.delivery.expect_outcomes(
            OutcomeRow(first, one, SENT), OutcomeRow(first + 1, other, SENT), OutcomeRow(first + 2, one, SENT)
        )
        assert len(simulator.tokens) == 3


async def test_badges_increment_per_device_until_the_app_is_opened(ios: IosHarness) -> None:
    async with ios.running() as simulator:
        one, other = await ios.register(*VALID_TOKENS[:2])
        for _ in range(2):
            await ios.send(one, message=INCREMENT_BADGE)
        await ios.send(message=INCREMENT_BADGE)
        await simulator.wait_accepted(4)
        assert simulator.badges(VALID_TOKENS[0]) == [1, 2, 3]
        assert simulator.badges(VALID_TOKENS[1]) == [1]
        await ios.send(one, message=Message(is_notif=True, content="seven", ios=IosStyle(badge=7)))
        await ios.send(one, message=INCREMENT_BADGE)
        await simulator.wait_accepted(6)
        assert simulator.badges(VALID_TOKENS[0]) == [1, 2, 3, 7, 8]
        await ios.delivery.recorder().wait_recorded()
        before = ios.delivery.read_snapshot()
    ios.delivery.write_snapshot(before)
    async with ios.running() as simulator:
        await ios.send(one, other, message=INCREMENT_BADGE)
        await simulator.wait_accepted(2)
        assert (simulator.badges(VALID_TOKENS[0]), simulator.badges(VALID_TOKENS[1])) == ([9], [2])
        ios.delivery.clock.move(1)
        await ios.open_app(VALID_TOKENS[0], one)
        ios.delivery.clock.move(1)
        await ios.send(one, other, message=INCREMENT_BADGE)
        await ios.send(one, message=INCREMENT_BADGE)
        await simulator.wait_accepted(5)
        assert (simulator.badges(VALID_TOKENS[0]), simulator.badges(VALID_TOKENS[1])) == ([9, 1, 2], [2, 3])
    assert (await ios.delivery.verify()).equal


async def test_a_pass_through_message_is_a_background_push(ios: IosHarness) -> None:
    async with ios.running() as simulator:
        (device,) = await ios.register(VALID_TOKENS[0])
        await ios.send(device, message=Message(content="x"))
        await simulator.wait_accepted(1)
        headers = simulator.received[0].headers
        assert (headers["apns-push-type"], headers["apns-priority"]) == ("background", "5")


async def test_a_rate_limited_push_is_sent_at_its_rate(ios: IosHarness) -> None:
    async with ios.running() as simulator:
        await ios.register(*VALID_TOKENS)
        await ios.send(qps=2)
        await simulator.wait_accepted(1)
        for seconds in (1, 2):
            await ios.advance_until(lambda seconds=seconds: len(simulator.tokens) >= 1 + 2 * seconds)  # type: ignore[misc]
            assert len(simulator.tokens) <= 2 + (ios.delivery.clock.now_ms() - START_MS) // 500
        await ios.advance_until(lambda: len(simulator.tokens) == 6)
        assert ios.delivery.clock.now_ms() >= START_MS + 2500


async def test_a_push_with_a_possession_code_is_silent_and_brings_the_code_alone(ios: IosHarness) -> None:
    async with ios.running() as simulator:
        (device,) = await ios.register(VALID_TOKENS[0])
        keys = ios.delivery.role_context().keys
        msgids = []
        for sealed, code in ((sealed_code(keys, "the code", ios.appkey), "the code"), (b"of another master key", "")):
            message = Message(content="possession code", ios=IosStyle(sealed_possession_code=sealed))
            msgids.append(await ios.send(device, message=message))
            await ios.delivery.expect_outcomes(*(OutcomeRow(msgid, device, SENT) for msgid in msgids))
            received = simulator.received[-1]
            assert received.body == {"aps": {"content-available": 1}, "carillon": {"code": code}}
            assert (received.headers["apns-push-type"], received.headers["apns-priority"]) == ("background", "5")
