"""Limits of registrations: by network, by app, and by the quota of devices that the registry decides."""

from collections import OrderedDict
from collections.abc import Callable
from random import Random
from typing import Never

from protos.registry.v1.apps_pb2 import App
from protos.registry.v1.registry_pb2 import ReserveDeviceRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.apps import AppDirectory
from services.domain.quota_notices import QuotaNotices
from services.domain.settings import Settings
from services.domain.topics import device_key
from services.errors import TooManyRequestsError
from services.log.topics import partition_of
from services.net.sockets import network
from services.process.clock import Clock
from services.process.logs import logger
from services.process.metrics import QUOTA_REFUSALS
from services.replica.peers import Peers

MAX_NETWORKS = 10_000
"""Upper bound of the token buckets; the longest unused one is forgotten, and is full when it is used again."""

BURST_MINUTES = 5
"""The token buckets of an app and of a network hold the registrations of this many minutes."""

RETRY_S = 60
"""Shortest time after which a device that was refused tries again. Devices are spread over twice as long."""

_BURST_S = 10
_IPV6_BITS = 48
"""A site gets a /48 of IPv6 addresses at most, so whoever has one address may use 65,536 networks of 64 bits."""

_MINUTE_MS = 60_000
_WARNING_MS = 3_600_000


class RegistrationLimiter:
    """Token buckets: `per_s` registrations a second from each network, and at most ten times as many at once."""

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._burst = _BURST_S * per_s
        self._levels: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._levels)

    def take(self, address: str, now_ms: int) -> bool:
        """Take one token for a device at this address; False when its network's bucket is empty."""
        peer = network(address, _IPV6_BITS)
        level, then_ms = self._levels.pop(peer, (self._burst, now_ms))
        level = min(self._burst, level + max(0, now_ms - then_ms) * self._per_s / 1000)
        taken = level >= 1
        self._levels[peer] = (level - taken, now_ms)
        if len(self._levels) > MAX_NETWORKS:
            self._levels.popitem(last=False)
        return taken


class RegistrationRates:
    """The rates at which new devices may register: of each app, and of each app from one network.

    `processes` returns how many processes share the registrations now; each admits an equal share of both rates. A
    bucket is stored as the time at which it will be full again, in memory, so all are full after a start.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        processes: Callable[[], int],
        random: Random,
        notices: QuotaNotices,
    ) -> None:
        self._settings = settings
        self._notices = notices
        self._random = random
        self._clock = clock
        self._processes = processes
        self._is_proxy = settings.client_addresses().is_proxy
        self._apps: dict[str, float] = {}
        self._networks: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._warned_ms: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._networks)

    def take(self, app: App, address: str | None = None) -> None:
        """Count a new device of the app. TooManyRequestsError: there are too many; none is counted.

        `address`: the device's, or None where the app's server registers it. If a trusted proxy did not add its
        client's address, it is the proxy's own address, which many devices share; that address has no rate of its own.
        """
        has_own_rate = app.quotas.HasField("registrations_per_minute")
        most = self._settings.registrations_per_minute
        per_minute = app.quotas.registrations_per_minute if has_own_rate else most
        if has_own_rate and not per_minute:
            return
        from_address = self._settings.registrations_per_minute_per_address
        now_ms = self._clock.now_ms()
        key = None
        if address and from_address and not self._is_proxy(address):
            key = app.appkey, network(address, _IPV6_BITS)
            full_ms = self._networks.get(key, 0.0)
            if (address_ms := self._next(full_ms, from_address, now_ms)) is None:
                self._refuse(app.appkey, "registrations_per_address", address, from_address)
        if per_minute:
            app_ms = self._next(self._apps.get(app.appkey, 0.0), per_minute, now_ms)
            if app_ms is None:
                self._notices.note(app.appkey, "registrations_per_minute", per_minute)
                self._refuse(app.appkey, "registrations_per_minute", address, per_minute)
            self._apps[app.appkey] = app_ms
        if key is not None and address_ms is not None:
            self._networks[key] = address_ms
            self._networks.move_to_end(key)
            if len(self._networks) > MAX_NETWORKS:
                self._networks.popitem(last=False)

    def _next(self, full_ms: float, per_minute: int, now_ms: int) -> float | None:
        """Return when a bucket will be full again after one more token was taken; None if it is empty."""
        interval_ms = self._processes() * _MINUTE_MS / per_minute
        capacity_ms = max(BURST_MINUTES * _MINUTE_MS, interval_ms)
        if full_ms > now_ms + capacity_ms:
            full_ms = 0  # the clock was set back, or the rate was raised
        next_ms = max(full_ms, now_ms) + interval_ms
        return next_ms if next_ms <= now_ms + capacity_ms else None

    def _refuse(self, appkey: str, quota: str, address: str | None, per_minute: int) -> Never:
        QUOTA_REFUSALS.labels(appkey, quota).inc()
        self._warn(appkey, quota, address, per_minute)
        whose = " from one address" if quota == "registrations_per_address" else ""
        retry_s = RETRY_S + self._random.randrange(2 * RETRY_S)
        raise TooManyRequestsError(
            f"app {appkey} may register {per_minute} new devices a minute{whose}; try again in {retry_s} s", retry_s
        )

    def _warn(self, appkey: str, quota: str, address: str | None, per_minute: int) -> None:
        """Log the refusal, once an hour for each app."""
        now_ms = self._clock.now_ms()
        if now_ms - self._warned_ms.get(appkey, -_WARNING_MS) < _WARNING_MS:
            return
        self._warned_ms[appkey] = now_ms
        logger.warning(
            "new devices of an app are refused because too many register; if they are real, raise the bound by"
            " `carillon app set APPKEY --registrations-per-minute`, or that for each address by"
            " CARILLON_REGISTRATIONS_PER_MINUTE_PER_ADDRESS, and name the proxies in CARILLON_TRUSTED_PROXIES",
            appkey=appkey,
            bound=quota,
            per_minute=per_minute,
            address=address or "app server",
        )


# The quota of devices, asked for by the roles that register devices. The registry decides it.

WAIT_S = 600
"""Time after which a device may try again: a refusal ends only once a device is removed or the quota is raised."""


class DeviceQuota:
    """Reserves a part of the app's quota for each new device, by a call to the registry; without a quota no call."""

    def __init__(self, apps: AppDirectory, peers: Peers, clock: Clock, partitions: int) -> None:
        self._apps = apps
        self._peers = peers
        self._partitions = partitions
        self._notices = QuotaNotices(peers, clock)

    async def reserve(self, appkey: str, token: str) -> None:
        """Return once the token may be registered now, or is registered already.

        TooManyRequestsError: it may not be registered now.
        """
        app = self._apps.get(appkey)
        if app is None or not app.quotas.devices:
            return
        partition = partition_of(device_key(appkey, token), self._partitions)
        registry = RegistryServiceStub(self._peers.owner("registry", partition))
        if (await registry.ReserveDevice(ReserveDeviceRequest(appkey=appkey, token=token))).quota_used_up:
            QUOTA_REFUSALS.labels(appkey, "devices").inc()
            self._notices.note(appkey, "devices", app.quotas.devices)
            raise TooManyRequestsError(
                f"app {appkey} is over its quota of {app.quotas.devices} devices; try again in {WAIT_S} s", WAIT_S
            )
