"""The share of one app in the memory for pushes that wait."""

import pytest

from protos.push.v1.push_pb2 import Message
from services.delivery import starting, waiting_pushes
from testkit.delivery.records import NumberedDevice
from testkit.delivery.role import DeliveryHarness
from tests.services.delivery.starting.test_held_up import reasons, without_targeting

A = NumberedDevice(0, 0)


async def test_an_app_with_too_many_pushes_that_wait_for_targeting_stops_no_other_apps_commands(
    delivery: DeliveryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together the pushes exceed what delivery may hold before it stops reading; one app's share of that is less."""
    monkeypatch.setattr(waiting_pushes, "MAX_WAITING_BYTES", 8_000)
    monkeypatch.setattr(starting, "MAX_HELD_UP_BYTES", 2_000)
    async with without_targeting(delivery) as gateway:
        many = [delivery.push(message=Message(content="x" * 500)) for _ in range(20)]
        await delivery.command(*many)
        unicast = await delivery.send(A)
        await gateway.expect((1, unicast))
        failed = {push.msgid: found for push in many if (found := await reasons(delivery, push.msgid))}
        assert len(failed) == len(many) - 3
        assert all("wait for targeting already" in reason for found in failed.values() for _, reason in found)
        delivery.show_targeting()
        await delivery.advance(1)
        await gateway.wait_count(4)
        assert {message.msgid for message in gateway.received} == {
            unicast,
            *(push.msgid for push in many),
        } - failed.keys()
    assert (await delivery.verify()).equal


@pytest.mark.parametrize("apps", [1, 2, 5])
def test_apps_that_take_all_the_capacity_they_have_leave_half_of_the_rest_to_another(
    apps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One app after the other takes all that it may."""
    monkeypatch.setattr(waiting_pushes, "MAX_WAITING_BYTES", 6_000)
    waiting = waiting_pushes.WaitingBytes()
    noisy = [f"noisy {number}" for number in range(apps)]
    while with_capacity := [app for app in noisy if waiting.has_capacity(app)]:
        waiting.add(with_capacity[0], 10)
    rest = 6_000 - waiting.total
    assert 6_000 / 2**apps - 10 * apps <= rest <= 6_000 / 2**apps
    taken = 0
    while waiting.has_capacity("quiet"):
        waiting.add("quiet", 10)
        taken += 10
    assert rest / 2 <= taken <= rest / 2 + 10
    for app in noisy:
        assert not waiting.has_capacity(app)
    waiting.remove("quiet", taken)
    waiting.remove(noisy[0], 2_000)
    assert waiting.has_capacity(noisy[0])
