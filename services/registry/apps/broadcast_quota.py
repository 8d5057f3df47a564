"""The quota of broadcasts a day: counted in topic `apps`, so it holds over restarts and for every edge."""

from collections.abc import Sequence
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from protos.registry.v1.apps_pb2 import App, AppFact, BroadcastCount
from protos.registry.v1.registry_pb2 import TakeBroadcastsResponse
from services.domain.apps import AppDirectory
from services.domain.command_writer import Command
from services.domain.topics import APPS
from services.runtime.process.clock import Clock


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
        """Return the count of the day: the log's, or that of this process, whose records may still be on their way."""
        known = (self._apps.broadcasts(appkey), self._taken.get(appkey, BroadcastCount()))
        return max(count.count if count.day == day else 0 for count in known)


def _until_tomorrow_s(now: datetime) -> int:
    """Return the seconds until the next midnight, which are more or fewer than 24 h where clocks change."""
    midnight = datetime.combine(now.date() + timedelta(days=1), time(), now.tzinfo)
    return int(midnight.timestamp() - now.timestamp()) + 1
