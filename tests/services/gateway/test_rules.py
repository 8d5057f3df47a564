"""The gateway's rules: hellos, deadlines, capacity, and the spread of goodbyes and reconnects."""

from random import Random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from protos.registry.v1.apps_pb2 import App, Platform
from services.domain.device_protocol.frames import Hello
from services.gateway.rules import (
    DRAIN_MS,
    Capacity,
    decide_hello,
    drained_retry_ms,
    end_reason,
    goodbye_delay_ms,
    process_capacity,
)
from services.gateway.settings import GatewaySettings
from testkit.gateway.role import ANDROID


def test_only_android_apps_have_connections() -> None:
    android, ios = App(platform=Platform.PLATFORM_ANDROID), App(platform=Platform.PLATFORM_IOS)
    new, known = Hello(appkey=ANDROID), Hello(appkey=ANDROID, token="t", key="k")
    assert [decide_hello(new, app, None) for app in (android, ios, None)] == ["register", "refuse", "refuse"]
    assert [decide_hello(known, app, 0) for app in (android, ios, None)] == ["welcome", "refuse", "refuse"]
    assert decide_hello(known, android, None) == "refuse"


def test_each_deadline_ends_a_connection_in_time() -> None:
    limits = msgspec.structs.replace(GatewaySettings().limits(), hello_ms=10, slow_ms=50, ack_ms=70, goodbye_ms=5)

    class Times(msgspec.Struct):
        last_frame_ms: int = 0
        idle_after_ms: int = 100
        paused_ms: int | None = None
        closing_ms: int | None = None
        oldest_unacknowledged_ms: int | None = None

    def at(now: int, **since: int) -> str | None:
        return end_reason(now, Times(**since), limits)

    assert [at(now, idle_after_ms=10) for now in (9, 10)] == [None, "idle"]
    assert [at(now) for now in (99, 100)] == [None, "idle"]
    assert [at(now, paused_ms=20) for now in (69, 70)] == [None, "slow"]
    assert [at(now, oldest_unacknowledged_ms=20) for now in (89, 90)] == [None, "unacknowledged"]
    assert [at(now, closing_ms=200) for now in (204, 205)] == [None, "gone"]


def test_capacity_reserves_files_for_other_uses() -> None:
    for files in (64, 1024, 20_000, 2**20):
        found = process_capacity(files, None)
        others = min(files // 8, 512) + min(files // 8, 1024)
        assert found.connections + found.pending == files - others
        assert found.pending == min(files // 4, 4096)
        assert process_capacity(files, None, 5).connections == found.connections + min(files // 8, 1024) - 5
    assert process_capacity(1024, 5) == Capacity(5, 256)


@given(st.integers(1, 10_000_000), st.integers(1, 1_000_000))
def test_goodbyes_of_a_drain_are_spread_by_rate_within_the_bound(connections: int, per_s: int) -> None:
    moments = [
        goodbye_delay_ms(index, connections, per_s) for index in range(0, connections, max(1, connections // 50))
    ]
    assert moments == sorted(moments)
    assert moments[0] == 0
    assert moments[-1] <= DRAIN_MS
    if connections <= per_s:
        assert goodbye_delay_ms(connections - 1, connections, per_s) <= 1000


def test_drained_devices_reconnect_no_faster_than_the_rate() -> None:
    random = Random(1)
    returns = [drained_retry_ms(10_000, 1000, random) for _ in range(10_000)]
    seconds = [sum(second * 1000 <= each - 100 < (second + 1) * 1000 for each in returns) for second in range(10)]
    assert sum(seconds) == 10_000
    assert max(seconds) < 1150
