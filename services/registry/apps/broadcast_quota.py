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
    """Decides whether apps may send one more broadcast today. Days are those of the installation's time zone."""

    def __init__(self, apps: AppDirectory, clock: Clock, zone: ZoneInfo) -> None:
        self._apps = apps
        self._clock = clock
        self._zone = zone

    def take(self, apps: Sequence[App]) -> tuple[TakeBroadcastsResponse, list[Command]]:
        """Return the answer, and the counts to append: none when an app's quota is used up, or no app has one."""
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, self._zone)
        day = now.date().isoformat()
        facts = []
        for app in apps:
            quota = app.quotas.broadcasts_per_day
            if not quota:
                continue
            known = self._apps.broadcasts(app.appkey)
            count = known.count if known.day == day else 0
            if count >= quota:
                return TakeBroadcastsResponse(exhausted_appkey=app.appkey, retry_after_s=_until_tomorrow_s(now)), []
            taken = BroadcastCount(appkey=app.appkey, day=day, count=count + 1)
            facts.append(Command(APPS, f"{app.appkey}/broadcasts".encode(), AppFact(broadcasts=taken)))
        return TakeBroadcastsResponse(), facts


def _until_tomorrow_s(now: datetime) -> int:
    """Return the seconds until the next midnight, which are more or fewer than 24 h where clocks change."""
    midnight = datetime.combine(now.date() + timedelta(days=1), time(), now.tzinfo)
    return int(midnight.timestamp() - now.timestamp()) + 1
