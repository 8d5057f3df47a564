"""Acknowledgements of Android unicast messages, read page by page."""

from edge.core.turns import busy_as_too_many
from protos.analytics.v1.analytics_pb2 import ListAcksRequest, ListAcksResponse
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub
from protos.registry.v1.apps_pb2 import App
from services.domain.apps import AppDirectory
from services.runtime.errors import InputError
from services.runtime.rpc.peers import Peers

_READ_S = 20.0


class Acks:
    """Reads acknowledgements from analytics, for apps for which the operator enabled it."""

    def __init__(self, apps: AppDirectory, peers: Peers) -> None:
        self._apps = apps
        self._analytics = AnalyticsServiceStub(peers.all("analytics")[0])

    async def read(self, app: App, pos: str, limit: int) -> ListAcksResponse:
        """Return at most `limit` records after `pos`; "0" is the start. InputError: no such position."""
        request = ListAcksRequest(appkey=app.appkey, pos=pos, limit=limit)
        with busy_as_too_many():
            page: ListAcksResponse = await self._analytics.ListAcks(request, timeout=_READ_S)
        return page

    async def check_enabled(self, app: App) -> None:
        """InputError: not enabled for the app. The app directory is refreshed once before the refusal."""
        if not app.ack_info_enabled:
            await self._apps.refresh()
            newest = self._apps.get(app.appkey)
            if newest is None or not newest.ack_info_enabled:
                raise InputError("getAckInfo is not enabled for this app")
