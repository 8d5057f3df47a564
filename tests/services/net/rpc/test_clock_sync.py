"""Processes whose hosts' clocks are wrong have the time of the majority, and a difference is logged and measured."""

import math
from collections.abc import Sequence

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from protos.runtime.v1.clock_pb2_grpc import add_ClockServiceServicer_to_server
from services.net.rpc.channel import Channel, connect
from services.net.rpc.clock_sync import ClockServicer, ClockSync
from services.net.rpc.local import LocalServer
from services.process.clock import SteadyClock

RIGHT_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


def host(ahead_ms: int) -> SteadyClock:
    return SteadyClock(lambda: (RIGHT_MS + ahead_ms) * 1_000_000, lambda: 0)


def channels(clocks: Sequence[SteadyClock]) -> dict[str, list[Channel]]:
    servers = [LocalServer() for _ in clocks]
    for server, clock in zip(servers, clocks, strict=True):
        add_ClockServiceServicer_to_server(ClockServicer(clock, lambda: None), server)  # type: ignore[arg-type]
    return {"registry": [server.channel() for server in servers]}


@pytest.mark.parametrize("wrong_by_ms", [HOUR_MS, -HOUR_MS, 1500])
async def test_one_wrong_clock_among_three_changes_no_process(wrong_by_ms: int) -> None:
    clocks = [host(0), host(20), host(wrong_by_ms)]
    for at, clock in enumerate(clocks):
        await ClockSync(clock, channels(clocks), f"registry-{at}").check()
    assert all(abs(clock.now_ms() - RIGHT_MS) <= 100 for clock in clocks)
    assert [clock.host_ms() - RIGHT_MS for clock in clocks] == [0, 20, wrong_by_ms]


async def test_two_clocks_have_no_majority() -> None:
    clocks = [host(0), host(HOUR_MS)]
    absent = connect("127.0.0.1:1")
    for clock, other in zip(clocks, reversed(clocks), strict=True):
        await ClockSync(clock, {**channels([other]), "delivery": [absent]}).check()
    assert [clock.now_ms() - RIGHT_MS for clock in clocks] == [0, HOUR_MS]
    await absent.close()


async def test_a_difference_of_more_than_a_second_is_measured_and_logged_once() -> None:
    sync = ClockSync(host(0), channels([host(500), host(-2500)]))
    with capture_logs() as logged:
        await sync.check()
        await sync.check()
    assert [(entry["peer"], round(entry["ahead_s"], 1)) for entry in logged] == [("registry-1", -2.5)]
    measured = [
        REGISTRY.get_sample_value("carillon_clock_skew_seconds", {"peer": f"registry-{at}"}) or 0 for at in (0, 1)
    ]
    assert [round(skew, 1) for skew in measured] == [0.5, -2.5]


@pytest.mark.parametrize(
    ("ages_ms", "least_ms"), [((7000, 40, None), 40), ((None, None), math.inf), ((), None)], ids=str
)
async def test_a_process_learns_when_the_log_last_accepted_a_record_of_another_role(
    ages_ms: Sequence[int | None], least_ms: float | None
) -> None:
    """A role of an older version answers without it, as one whose log has accepted nothing yet."""
    servers = [LocalServer() for _ in ages_ms]
    for server, age_ms in zip(servers, ages_ms, strict=True):
        servicer = ClockServicer(host(0), lambda age_ms=age_ms: age_ms)  # type: ignore[misc]
        add_ClockServiceServicer_to_server(servicer, server)  # type: ignore[arg-type]
    absent = connect("127.0.0.1:1")
    others = {"registry": [server.channel() for server in servers], "delivery": [absent]}
    assert await ClockSync(host(0), others).log_age_elsewhere() == least_ms
    await absent.close()
