"""The endpoint of the v2 interface for statistics."""

from zoneinfo import ZoneInfo

from falcon.asgi import Request, Response

from edge.core.analytics_calls import call_analytics
from edge.core.answers import answer
from edge.core.authentication import Authenticator
from edge.core.request_limiter import RequestLimiter
from edge.v2.apps import one_app
from edge.v2.statistics.replies import statistics_reply
from edge.v2.statistics.requests import statistics_request
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub
from services.runtime.rpc.channel import Channel

_ANALYTICS_S = 20.0


class StatisticsEndpoint:
    """POST /v2/statistics"""

    def __init__(
        self, authenticator: Authenticator, analytics: Channel, zone: ZoneInfo, limiter: RequestLimiter
    ) -> None:
        self._authenticator = authenticator
        self._analytics = AnalyticsServiceStub(analytics)
        self._zone = zone
        self._limiter = limiter

    async def on_post(self, request: Request, response: Response) -> None:
        signed = await self._authenticator.authenticate(request, one_app)
        (appkey,) = signed.apps.appkeys
        query = await signed.read(lambda raw: statistics_request(raw, appkey))
        await self._limiter.enter_query(request, appkey)
        found = await call_analytics(request, self._analytics.Statistics(query, timeout=_ANALYTICS_S))
        answer(response, statistics_reply(found, self._zone))
