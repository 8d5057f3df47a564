"""An app's quotas of broadcasts a day and of devices, both counted so that they hold over restarts."""

from collections.abc import Sequence
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from protos.registry.v1.apps_pb2 import App, AppFact, BroadcastCount
from protos.registry.v1.registry_pb2 import TakeBroadcastsResponse
from services.domain.apps import AppDirectory
from services.domain.command_writer import Command
from services.domain.topics import APPS
from services.process.clock import Clock
from services.registry.queries import RegistryQueries

NOTED_QUOTAS = ("requests_per_s", "targets_per_s", "devices", "stored_task_bytes", "registrations_per_minute")
"""The quotas whose exhaustion edges and gateways report, under their names in Quotas."""


def day_of(now_ms: int, zone: ZoneInfo) -> str:
    """Return the day in the time zone: YYYY-MM-DD."""
    return datetime.fromtimestamp(now_ms / 1000, zone).date().isoformat()


class BroadcastQuota:
    """Decides whether apps may send one more broadcast today. Days are those of the installation's time zone.

    `take` counts at once, so calls need not wait for each other: their records are appended in the order of the counts.
    """

    def __init__(self, apps: AppDirectory, clock: Clock, zone: ZoneInfo) -> None:
        self._apps = apps
        self._clock = clock
        self._zone = zone
        self._taken: dict[str, BroadcastCount] = {}

    def take(self, apps: Sequence[App]) -> tuple[TakeBroadcastsResponse, list[Command]]:
        """Return the answer, and the counts to append: none when an app's quota is used up, or no app has one."""
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, self._zone)
        day = now.date().isoformat()
        counts = []
        for app in apps:
            quota = app.quotas.broadcasts_per_day
            if not quota:
                continue
            taken = self._taken_on(day, app.appkey)
            if taken >= quota:
                return TakeBroadcastsResponse(exhausted_appkey=app.appkey, retry_after_s=_until_tomorrow_s(now)), []
            counts.append(BroadcastCount(appkey=app.appkey, day=day, count=taken + 1))
        self._taken |= {count.appkey: count for count in counts}
        keys = [f"{count.appkey}/broadcasts".encode() for count in counts]
        return TakeBroadcastsResponse(), [
            Command(APPS, key, AppFact(broadcasts=count)) for key, count in zip(keys, counts, strict=True)
        ]

    def _taken_on(self, day: str, appkey: str) -> int:
        """Return the day's count: the log's, or this process's if greater, as its records may not be applied yet."""
        known = (self._apps.broadcasts(appkey), self._taken.get(appkey, BroadcastCount()))
        return max(count.count if count.day == day else 0 for count in known)


def _until_tomorrow_s(now: datetime) -> int:
    """Return the seconds until the next midnight, which are more or fewer than 24 h where clocks change."""
    midnight = datetime.combine(now.date() + timedelta(days=1), time(), now.tzinfo)
    return int(midnight.timestamp() - now.timestamp()) + 1


# The quota of devices, reserved before a device is registered, so that registrations never exceed it.
#
# The registration itself is decided without the quota, so deciding the same commands again always gives the same
# devices.

RESERVED_MS = 15_000
"""Time in ms after which an unused reservation ends; a registration takes 5 s at most."""


class DeviceReservations:
    """Reserves shares of the quota for new devices, in memory.

    An instance admits its share: quota x own partitions / partitions.
    """

    def __init__(self, queries: RegistryQueries, clock: Clock, own_partitions: int, partitions: int) -> None:
        self._queries = queries
        self._clock = clock
        self._own_partitions = own_partitions
        self._partitions = partitions
        self._expiries_ms: dict[str, dict[str, int]] = {}

    async def reserve(self, app: App, token: str) -> bool:
        """Return whether the token is registered, or has a reservation from now on; False when the quota is used up."""
        if not app.quotas.devices:
            return True
        most = -(-app.quotas.devices * self._own_partitions // self._partitions)
        reserved = self._unexpired(app.appkey)
        reserved.setdefault(token, self._clock.now_ms() + RESERVED_MS)
        count, known = await self._queries.registered(app.appkey, [token])
        if not known and count + len(reserved) > most:
            count, known = await self._queries.registered(app.appkey, list(reserved))
        for registered in known:
            reserved.pop(registered, None)
        if token in known or count + len(reserved) <= most:
            return True
        reserved.pop(token, None)
        return False

    def _unexpired(self, appkey: str) -> dict[str, int]:
        """Return the app's reservations, oldest first, after the expired ones are removed."""
        reserved = self._expiries_ms.setdefault(appkey, {})
        now_ms = self._clock.now_ms()
        while reserved and reserved[oldest := next(iter(reserved))] <= now_ms:
            del reserved[oldest]
        return reserved
