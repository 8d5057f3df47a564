"""The sender's connections: limits, time-outs, pings and back-off."""

import asyncio
import socket

from structlog.testing import capture_logs

from services.apns_simulator.script import Behaviour
from services.apns_simulator.server import ApnsSimulator
from services.delivery.channels.apns.request import ApnsResult
from services.delivery.channels.http2.service_connection import Timeouts
from services.process.clock import ManualClock
from services.process.metrics import CHANNEL_UNREACHABLE
from services.push_simulator.certificates import SelfSigned
from services.push_simulator.connection import Fault
from testkit.delivery.apns import (
    TOKEN,
    Team,
    make_push,
    make_pushes,
    open_sender,
    running_simulator,
    send,
    send_for_statuses,
    submit,
)
from testkit.delivery.scripted_tokens import prefix_of, token_with
from testkit.ports import free_ports
from testkit.services import running_services
from testkit.waiting import until_holds

NOW_MS = 1_800_000_000_000


async def test_a_payload_is_sent_in_pieces_through_a_small_window() -> None:
    async with running_simulator(behaviour=Behaviour(window=3)) as simulator:
        async with open_sender(simulator) as sender:
            assert await send_for_statuses(sender, *make_pushes([TOKEN] * 20)) == [200] * 20
        assert simulator.received[0].body == {"aps": {"alert": "hi"}}


async def test_a_connection_follows_the_servers_limit_of_streams() -> None:
    """The simulator's h2 closes a connection on which more streams are opened than it allows."""
    behaviour = Behaviour(streams=5, latency_ms=1)
    async with running_simulator(behaviour=behaviour) as simulator, open_sender(simulator) as sender:
        tokens = [TOKEN] * 20 + [token_with(prefix_of(0, fault=Fault.ONE_STREAM))] + [TOKEN] * 20
        assert await send_for_statuses(sender, *make_pushes(tokens)) == [200] * 41
        assert len(simulator.connections) == 1
        (connection,) = simulator.connections
        assert connection.max_open_requests == 5


async def test_the_first_push_of_a_connection_is_sent_alone() -> None:
    behaviour = Behaviour(first_streams=100, latency_ms=300)
    async with running_simulator(behaviour=behaviour) as simulator, open_sender(simulator) as sender:
        submitted = submit(sender, *make_pushes([TOKEN] * 20))
        await submitted[0].result
        (connection,) = simulator.connections
        assert connection.max_open_requests == 1
        await submitted[-1].result
        assert connection.max_open_requests == 19


async def test_an_overdue_response_is_an_unknown_result_and_delays_no_other_push(simulator: ApnsSimulator) -> None:
    silent = token_with(prefix_of(0, fault=Fault.SILENCE))
    async with open_sender(simulator, timeouts=Timeouts(request=2)) as sender:
        assert await send_for_statuses(sender, make_push()) == [200]
        late, *others = submit(sender, *make_pushes([silent] + [TOKEN] * 50))
        assert [(await push.result) for push in others] == [ApnsResult(200)] * 50
        assert not late.result.done()
        unknown = await late.result
        assert unknown == ApnsResult(0, "no answer in time")
        assert unknown.is_unknown
        assert await send_for_statuses(sender, make_push()) == [200]
        assert len(simulator.connections) == 1


async def test_failed_connection_attempts_back_off_exponentially() -> None:
    clock = ManualClock(NOW_MS)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sender = Team(clock).sender(f"https://127.0.0.1:{silent.getsockname()[1]}", None, Timeouts(connect=0.05))
        (push,) = submit(sender, make_push())
        slot = sender._slots[0]
        for backoff_ms in (1000, 2000, 4000):
            await until_holds(lambda: slot.circuit.is_open(clock.now_ms()))
            assert slot.circuit.open_until_ms == clock.now_ms() + backoff_ms
            clock.move(backoff_ms / 1000)
        assert not push.result.done()
        await sender.close()


async def test_a_service_that_cannot_be_reached_is_counted_until_it_can() -> None:
    unreachable, clock = CHANNEL_UNREACHABLE.labels("apns")._value.get, ManualClock(NOW_MS)
    before = unreachable()
    (port,) = free_ports(1)
    simulator = ApnsSimulator(clock, port=port)
    sender = Team(clock).sender(f"https://127.0.0.1:{port}", simulator.authority, None)
    (push,) = submit(sender, make_push())
    await until_holds(lambda: unreachable() == before + 1)
    clock.move(1)
    await until_holds(lambda: sender._slots[0].circuit.open_until_ms > clock.now_ms())
    assert unreachable() == before + 1
    async with running_services([simulator]):
        clock.move(2)
        await until_holds(push.result.done)
        assert unreachable() == before
        await sender.close()


async def test_a_closed_sender_counts_no_service() -> None:
    unreachable, clock = CHANNEL_UNREACHABLE.labels("apns")._value.get, ManualClock(NOW_MS)
    before = unreachable()
    (port,) = free_ports(1)
    sender = Team(clock).sender(f"https://127.0.0.1:{port}", None, None)
    submit(sender, make_push())
    await until_holds(lambda: unreachable() == before + 1)
    await sender.close()
    assert unreachable() == before


async def test_a_half_open_connection_is_detected_and_replaced(simulator: ApnsSimulator) -> None:
    timeouts = Timeouts(silence=0.2, pong=0.3)
    async with open_sender(simulator, timeouts=timeouts) as sender:
        assert await send_for_statuses(sender, make_push()) == [200]
        (mute,) = simulator.connections
        (lost,) = await send(sender, make_push(token_with(prefix_of(0, fault=Fault.HALF_OPEN))))
        assert lost.is_unknown
        assert await send_for_statuses(sender, make_push()) == [200]
        await until_holds(lambda: mute not in simulator.connections)


async def test_an_idle_connection_is_pinged_and_finally_closed(simulator: ApnsSimulator) -> None:
    async with open_sender(simulator, timeouts=Timeouts(silence=0.05, pong=5, idle=0.5)) as sender:
        assert await send_for_statuses(sender, make_push()) == [200]
        (connection,) = simulator.connections
        await until_holds(lambda: connection.pings >= 2)
        await until_holds(lambda: not simulator.connections)
        assert await send_for_statuses(sender, make_push()) == [200]


async def test_server_errors_back_off_the_connection_and_single_pushes_probe_it() -> None:
    clock = ManualClock(NOW_MS)
    async with running_simulator(clock) as simulator, open_sender(simulator, clock) as sender:
        assert await send_for_statuses(sender, make_push()) == [200]
        failing = token_with(prefix_of(500, "InternalServerError"))
        for backoff_s in (1, 2, 4):
            assert await send_for_statuses(sender, make_push(failing)) == [500]
            (waiting,) = submit(sender, make_push(msgid=backoff_s))
            assert sender._slots[0].circuit.open_until_ms == clock.now_ms() + backoff_s * 1000
            waiting.wanted = False
            clock.move(backoff_s)
            assert await asyncio.wait_for(waiting.result, 60) is None
        assert await send_for_statuses(sender, make_push()) == [200]
        assert sender._slots[0].circuit.is_closed


async def test_a_sender_trusts_only_its_authority(simulator: ApnsSimulator) -> None:
    for authority in (None, SelfSigned.make("127.0.0.1").certificate_pem):
        sender = Team().sender(simulator.url, authority)
        submit(sender, make_push())
        await until_holds(lambda sender=sender: not sender._slots[0].circuit.is_closed)  # type: ignore[misc]
        await sender.close()
    assert not simulator.received


async def test_a_server_without_http2_is_named_in_the_log() -> None:
    own = SelfSigned.make("127.0.0.1")
    server = await asyncio.start_server(
        lambda reader, writer: None, "127.0.0.1", 0, ssl=own.server_context(["http/1.1"])
    )
    port = server.sockets[0].getsockname()[1]
    sender = Team(ManualClock(NOW_MS)).sender(f"https://127.0.0.1:{port}", own.certificate_pem)
    with capture_logs() as logs:
        submit(sender, make_push())
        await until_holds(lambda: not sender._slots[0].circuit.is_closed and not sender._slots[0].connecting)
    assert [line["error"] for line in logs if line["log_level"] == "warning"] == ["the server speaks no HTTP/2"]
    await sender.close()
    server.close()
