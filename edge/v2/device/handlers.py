"""The endpoints of the v2 door about devices and figures: string tags, invalid tokens, statistics."""

import asyncio
from zoneinfo import ZoneInfo

from falcon.asgi import Request, Response

from edge.core.answers import answer
from edge.v2.apps import listed_apps, listed_ios_apps, one_app
from edge.v2.authentication import Reception
from edge.v2.device.invalid_tokens import InvalidTokens
from edge.v2.push.replies import change_reply, device_reply, info_entries
from edge.v2.statistics.statistics import statistics_reply, statistics_request
from edge.v2.tags.requests import tag_change, tag_query
from edge.v2.tags.string_tags import StringTags
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub
from services.runtime.rpc.transport import Channel

_ANALYTICS_S = 20.0


class TagEndpoint:
    """POST and DELETE /v2/device"""

    def __init__(self, reception: Reception, tags: StringTags) -> None:
        self._reception = reception
        self._tags = tags

    async def on_post(self, request: Request, response: Response) -> None:
        signed, apps, origin = await self._reception.admit(request, listed_apps)
        wanted = tag_change(signed.raw, apps)
        answer(response, change_reply(apps, wanted, await self._tags.add(wanted, origin), "add token done"))

    async def on_delete(self, request: Request, response: Response) -> None:
        signed, apps, origin = await self._reception.admit(request, listed_apps)
        wanted = tag_change(signed.raw, apps)
        answer(response, change_reply(apps, wanted, await self._tags.remove(wanted, origin), "delete token done"))


class TagInfoEndpoint:
    """POST /v2/deviceinfo"""

    def __init__(self, reception: Reception, tags: StringTags) -> None:
        self._reception = reception
        self._tags = tags

    async def on_post(self, request: Request, response: Response) -> None:
        signed, apps, _ = await self._reception.admit(request, listed_apps)
        asked = tag_query(signed.raw, apps)
        details = map(info_entries, asked, await self._tags.of(asked))
        answer(response, device_reply(apps, details, "ok"))


class InvalidTokensEndpoint:
    """POST /v2/errortoken"""

    def __init__(self, reception: Reception, invalid_tokens: InvalidTokens) -> None:
        self._reception = reception
        self._invalid_tokens = invalid_tokens

    async def on_post(self, request: Request, response: Response) -> None:
        _, apps, _ = await self._reception.admit(request, listed_ios_apps)
        found = await asyncio.gather(*map(self._invalid_tokens.of, apps.appkeys))
        answer(response, {"result": 0, "desc": "ok", "data": dict(zip(apps.appkeys, found, strict=True))})


class StatisticsEndpoint:
    """POST /v2/statistics"""

    def __init__(self, reception: Reception, analytics: Channel, zone: ZoneInfo) -> None:
        self._reception = reception
        self._analytics = AnalyticsServiceStub(analytics)
        self._zone = zone

    async def on_post(self, request: Request, response: Response) -> None:
        signed, apps, _ = await self._reception.admit(request, one_app)
        asked = statistics_request(signed.raw, apps.appkeys[0])
        answer(response, statistics_reply(await self._analytics.Statistics(asked, timeout=_ANALYTICS_S), self._zone))
