"""iOS delivery: restarts, and unavailability of the registry and of Apple's service."""

import asyncio
import socket

import pytest

from services.apns_simulator.script import Behaviour
from services.apns_simulator.server import ApnsSimulator
from services.delivery import main as delivery_main
from services.delivery.channels.apns.sender import ApnsEndpoint
from services.domain.apns_credentials import Environment
from services.push_simulator.certificates import SelfSigned
from testkit.delivery.ios import VALID_TOKENS, IosHarness
from testkit.delivery.records import SENT, OutcomeRow
from testkit.services import TIMEOUT_S, running_services


async def test_pushes_unsent_at_the_stop_are_sent_after_the_next_start(ios: IosHarness) -> None:
    async with ios.running() as simulator:
        one, other = await ios.register(*VALID_TOKENS[:2])
        sent = await ios.send(one)
        await ios.delivery.expect_outcomes(OutcomeRow(sent, one, SENT))
        simulator.refusals = [(503, "Shutdown")]
        left = await ios.send(other)
        await asyncio.wait_for(simulator.all_refused.wait(), TIMEOUT_S)
    async with ios.running() as simulator:
        await ios.delivery.expect_outcomes(OutcomeRow(sent, one, SENT), OutcomeRow(left, other, SENT))
        assert simulator.tokens == [VALID_TOKENS[1]]


async def test_neither_a_replay_nor_a_start_asks_apple_again(ios: IosHarness) -> None:
    async with ios.running():
        (device,) = await ios.register(VALID_TOKENS[0])
        msgid = await ios.send(device)
        await ios.delivery.expect_outcomes(OutcomeRow(msgid, device, SENT))
    assert (await ios.delivery.verify()).equal
    async with ios.running() as simulator:
        await ios.delivery.advance(60, steps=6)
        assert simulator.request_count == 0


async def test_pushes_wait_while_the_registry_is_unavailable(ios: IosHarness) -> None:
    async with ios.running():
        (device,) = await ios.register(VALID_TOKENS[0])
    async with ios.running(hide_registry=True) as simulator:
        msgid = await ios.send(device)
        await ios.delivery.advance(3, steps=3)
        assert simulator.request_count == 0
        ios.show_registry()
        await ios.advance_until(lambda: simulator.request_count == 1)
        await ios.delivery.expect_outcomes(OutcomeRow(msgid, device, SENT))


async def test_a_broadcast_reaches_every_device_through_connection_losses_and_goaways(
    ios: IosHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each device gets it at least once, always with the same collapse id, and has one outcome."""
    certificate, clock = SelfSigned.make("127.0.0.1"), ios.delivery.clock
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    endpoint = ApnsEndpoint(f"https://127.0.0.1:{port}", certificate.certificate_pem)
    monkeypatch.setattr(delivery_main, "_endpoints", lambda settings, simulator: dict.fromkeys(Environment, endpoint))
    tokens = [f"{number:064x}" for number in range(400)]
    incarnations: list[ApnsSimulator] = []
    async with ios.running():
        devices = await ios.register(*tokens)
        msgid = await ios.send(period_s=100_000_000)
        await ios.wait_started()
        for number in range(200):
            behaviour = Behaviour(streams=20, latency_ms=1, goaway_every=17 + number % 7)
            simulator = ApnsSimulator(clock, port=port, behaviour=behaviour, certificate=certificate)
            incarnations.append(simulator)
            async with running_services([simulator]):
                async with asyncio.timeout(TIMEOUT_S):
                    while len(simulator.received) < 23 and ios.in_progress:
                        await ios.delivery.advance(1)
                for connection in list(simulator.connections):
                    connection.abort()
            await ios.delivery.advance(1)
            if not ios.in_progress:
                break
        await ios.delivery.expect_outcomes(*(OutcomeRow(msgid, device, SENT) for device in devices))
    received = [push for simulator in incarnations for push in simulator.received]
    assert {push.token for push in received} == set(tokens)
    assert {push.headers["apns-collapse-id"] for push in received} == {str(msgid)}
    assert len(await ios.delivery.outcomes(SENT)) == len(tokens)
    assert len(incarnations) > 5
