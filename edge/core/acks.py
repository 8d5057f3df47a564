"""Acknowledgements of Android unicast messages, read page by page."""

from falcon.asgi import Request

from edge.core.analytics_calls import call_analytics
from protos.analytics.v1.analytics_pb2 import ListAcksRequest, ListAcksResponse
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub
from protos.registry.v1.apps_pb2 import App
from services.domain.apps import OUTDATED, AppDirectory
from services.runtime.errors import InputError, UnavailableError
from services.runtime.rpc.peers import Peers

_READ_S = 20.0


class Acks:
    """Reads acknowledgements from analytics, for the apps whose operator has enabled getAckInfo."""

    def __init__(self, apps: AppDirectory, peers: Peers) -> None:
        self._apps = apps
        self._analytics = AnalyticsServiceStub(peers.all("analytics")[0])

    async def read(self, request: Request, app: App, pos: str, limit: int) -> ListAcksResponse:
        """Return at most `limit` records after `pos`; "0" is the start. InputError: no such position."""
        query = ListAcksRequest(appkey=app.appkey, pos=pos, limit=limit)
        page: ListAcksResponse = await call_analytics(request, self._analytics.ListAcks(query, timeout=_READ_S))
        return page

    async def check_enabled(self, app: App) -> None:
        """Check that getAckInfo is enabled for the app. InputError: it is not, also after a refresh of the apps.

        UnavailableError: the refresh failed, so the app is not refused.
        """
        if not app.ack_info_enabled:
            is_current = await self._apps.refresh()
            newest = self._apps.get(app.appkey)
            if newest is None or not newest.ack_info_enabled:
                refusal = InputError("getAckInfo is not enabled for this app")
                raise refusal if is_current else UnavailableError(OUTDATED)
