"""Token buckets of registrations."""

import contextlib
from collections.abc import Iterable
from random import Random
from typing import Any, cast

import pytest
import structlog

from protos.registry.v1.apps_pb2 import App, Quotas
from services.domain.quota_notices import QuotaNotices
from services.domain.registrations import MAX_NETWORKS, RegistrationLimiter, RegistrationRates
from services.domain.settings import Settings
from services.errors import TooManyRequestsError
from services.process.clock import ManualClock
from services.process.metrics import QUOTA_REFUSALS

APP = App(appkey="1")


def test_a_bucket_refills_up_to_its_burst() -> None:
    limiter = RegistrationLimiter(per_s=2)
    assert [limiter.take("a", 0) for _ in range(21)] == [True] * 20 + [False]
    assert [limiter.take("a", 499), limiter.take("a", 500), limiter.take("a", 500)] == [False, True, False]
    assert [limiter.take("a", 60_000) for _ in range(21)] == [True] * 20 + [False]
    assert not limiter.take("a", 0)
    assert limiter.take("b", 0)


def test_the_longest_unused_network_is_forgotten() -> None:
    limiter = RegistrationLimiter(per_s=1)
    for number in range(MAX_NETWORKS):
        assert all(limiter.take(str(number), 0) for _ in range(10))
    assert not limiter.take("0", 0)
    assert limiter.take("one more", 0)
    assert len(limiter) == MAX_NETWORKS
    assert (limiter.take("0", 0), limiter.take("1", 0)) == (False, True)


def test_a_network_of_48_bits_of_ipv6_shares_a_bucket() -> None:
    limiter = RegistrationLimiter(per_s=1)
    assert [limiter.take(f"2001:db8:0:{number}::1", 0) for number in range(11)] == [True] * 10 + [False]
    assert limiter.take("2001:db8:1::1", 0)


class NotedQuotas:
    """The quotas that were noted as reached, with their limits."""

    def __init__(self) -> None:
        self.noted: set[tuple[str, str, int]] = set()

    def note(self, appkey: str, quota: str, limit: int) -> None:
        self.noted.add((appkey, quota, limit))


def rates(
    processes: int = 1, notices: NotedQuotas | None = None, **settings: Any
) -> tuple[RegistrationRates, ManualClock]:
    clock, noted = ManualClock(1_000_000_000), cast(QuotaNotices, notices or NotedQuotas())
    return RegistrationRates(Settings(**settings), clock, lambda: processes, Random(1), noted), clock


def test_a_full_rate_of_an_app_is_a_reached_quota_and_that_of_a_network_is_not() -> None:
    notices, app = NotedQuotas(), App(appkey="1")
    limits, _ = rates(notices=notices, registrations_per_minute=3, registrations_per_minute_per_address=1)
    admitted(limits, app, ["192.0.2.1"] * 10)
    assert notices.noted == set()
    admitted(limits, app, [None] * 20)
    assert notices.noted == {("1", "registrations_per_minute", 3)}


def admitted(rates: RegistrationRates, app: App, addresses: Iterable[str | None]) -> int:
    """Return how many of the devices at these addresses may register."""
    count = 0
    for address in addresses:
        with contextlib.suppress(TooManyRequestsError):
            rates.take(app, address)
            count += 1
    return count


def test_by_default_one_address_registers_640_devices_in_20_s() -> None:
    limits, clock = rates()
    count = 0
    for _ in range(20):
        count += admitted(limits, APP, ["203.0.113.9"] * 206)
        clock.move(1)
    assert 630 <= count <= 640
    assert admitted(limits, APP, ["203.0.113.10"] * 601) == 600
    assert admitted(limits, App(appkey="2"), ["203.0.113.9"] * 601) == 600


@pytest.mark.long
def test_by_default_a_million_devices_behind_a_thousand_addresses_register_within_an_hour() -> None:
    limits, clock = rates()
    for _ in range(60):
        assert admitted(limits, APP, (f"198.51.{n % 250}.{n % 4}" for n in range(16_667))) == 16_667
        clock.move(60)


def test_an_app_has_a_bound_over_all_addresses_and_its_servers_registrations() -> None:
    limits, clock = rates(registrations_per_minute=2)
    assert admitted(limits, APP, [f"192.0.2.{number}" for number in range(9)]) == 9
    assert admitted(limits, APP, [None, None]) == 1
    with pytest.raises(TooManyRequestsError, match=r"2 new devices a minute; try again in \d+ s"):
        limits.take(APP, "192.0.2.99")
    assert admitted(limits, App(appkey="2"), ["192.0.2.1"]) == 1
    clock.move(30)
    assert admitted(limits, APP, [None, None]) == 1


def test_what_the_app_refuses_takes_no_token_of_the_address() -> None:
    limits, clock = rates(registrations_per_minute=1, registrations_per_minute_per_address=1)
    assert admitted(limits, APP, [None] * 5) == 5
    assert admitted(limits, APP, ["a"] * 9) == 0
    clock.move(300)
    assert admitted(limits, APP, ["a"] * 9) == 5


def test_an_app_s_own_bound_replaces_that_of_the_settings_and_0_lifts_both() -> None:
    limits, _ = rates(registrations_per_minute=100, registrations_per_minute_per_address=2)
    lower = App(appkey="1", quotas=Quotas(registrations_per_minute=1))
    none = App(appkey="2", quotas=Quotas(registrations_per_minute=0))
    other = App(appkey="3", quotas=Quotas(devices=9))
    assert [admitted(limits, app, ["a"] * 50) for app in (lower, none, other)] == [5, 50, 10]


def test_the_settings_lift_each_bound() -> None:
    limits, _ = rates(registrations_per_minute=0, registrations_per_minute_per_address=0)
    assert admitted(limits, APP, ["a"] * 2000) == 2000


def test_a_trusted_proxy_has_no_bound_of_its_own() -> None:
    limits, _ = rates(registrations_per_minute_per_address=1, trusted_proxies="10.0.0.0/8")
    assert admitted(limits, APP, ["10.1.2.3"] * 20) == 20
    assert admitted(limits, APP, ["192.0.2.1"] * 20) == 5


def test_processes_share_both_bounds() -> None:
    limits, _ = rates(4, registrations_per_minute=8, registrations_per_minute_per_address=4)
    assert admitted(limits, APP, ["a"] * 9) == 5
    assert admitted(limits, APP, ["a", "b", "c", "d", "e", "f", "g"]) == 5


def test_a_clock_that_is_set_back_makes_nobody_wait() -> None:
    limits, clock = rates(registrations_per_minute_per_address=1)
    assert admitted(limits, APP, ["a"] * 9) == 5
    clock.move(-3600)
    assert admitted(limits, APP, ["a"]) == 1


def test_refused_devices_are_spread_counted_and_logged_once_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    limits, clock = rates(registrations_per_minute_per_address=1)
    counter = QUOTA_REFUSALS.labels(APP.appkey, "registrations_per_address")
    before = counter._value.get()
    with structlog.testing.capture_logs() as logs:
        admitted(limits, APP, ["a"] * 5)
        waits = set()
        for _ in range(100):
            with pytest.raises(TooManyRequestsError) as refused:
                limits.take(APP, "a")
            waits.add(refused.value.retry_after_s)
        clock.move(3600)
        admitted(limits, APP, ["a"] * 7)
    assert (min(waits) >= 60, max(waits) < 180, len(waits) > 30) == (True, True, True)
    assert counter._value.get() == before + 102
    assert [(entry["appkey"], entry["address"]) for entry in logs] == [(APP.appkey, "a")] * 2


def test_the_longest_unused_address_of_an_app_is_forgotten() -> None:
    limits, _ = rates(registrations_per_minute=0, registrations_per_minute_per_address=1)
    for number in range(MAX_NETWORKS + 5):
        limits.take(APP, str(number))
    assert len(limits) == MAX_NETWORKS
