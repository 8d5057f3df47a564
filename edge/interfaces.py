"""The ASGI applications of the three HTTP interfaces."""

from edge.android.app import android_app
from edge.core.parsing.body import Application, BodyTimeout
from edge.ios.app import ios_app
from edge.settings import ROLE_NAME, EdgeSettings
from edge.v2.app import v2_app
from services.domain.ids import MessageIds, claim_worker
from services.domain.role import RoleContext


class Interfaces:
    """The applications of the three interfaces. They share a worker number for message ids, held until `close`."""

    def __init__(self, settings: EdgeSettings, context: RoleContext) -> None:
        worker, self._claim = claim_worker(settings.state_dir(ROLE_NAME), settings.shard, settings.shards)
        ids = MessageIds(context.clock, worker, self._claim)
        self.android: Application = BodyTimeout(android_app(settings, settings.timed_min_lead_s, context, ids))
        self.ios: Application = BodyTimeout(ios_app(settings, context, ids))
        self.v2: Application = BodyTimeout(v2_app(settings, context, ids))

    def by_port(self, settings: EdgeSettings) -> dict[int, Application]:
        return dict(zip(settings.interface_ports, (self.android, self.ios, self.v2), strict=True))

    def close(self) -> None:
        self._claim.close()
