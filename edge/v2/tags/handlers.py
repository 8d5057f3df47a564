"""The endpoints of the v2 interface for string tags of devices."""

from falcon.asgi import Request, Response

from edge.core.answers import answer
from edge.core.authentication import Authenticator, VerifiedRequest
from edge.core.request_limiter import RequestLimiter
from edge.core.signature import AppRef
from edge.v2.apps import NamedApps, listed_apps, with_platforms
from edge.v2.tags.replies import change_reply, query_reply
from edge.v2.tags.requests import tag_change, tag_query
from edge.v2.tags.string_tags import StagsByToken, StringTags
from services.domain.apps import AppDirectory


class TagEndpoint:
    """POST and DELETE /v2/device"""

    def __init__(
        self, authenticator: Authenticator, tags: StringTags, directory: AppDirectory, limiter: RequestLimiter
    ) -> None:
        self._authenticator = authenticator
        self._tags = tags
        self._directory = directory
        self._limiter = limiter

    async def on_post(self, request: Request, response: Response) -> None:
        signed, changes = await self._change(request)
        outcomes = await self._tags.add(changes, signed.origin)
        answer(response, change_reply(signed.apps, changes, outcomes, "add token done"))

    async def on_delete(self, request: Request, response: Response) -> None:
        signed, changes = await self._change(request)
        outcomes = await self._tags.remove(changes, signed.origin)
        answer(response, change_reply(signed.apps, changes, outcomes, "delete token done"))

    async def _change(self, request: Request) -> tuple[VerifiedRequest[NamedApps], list[tuple[AppRef, StagsByToken]]]:
        signed = await self._authenticator.authenticate(request, listed_apps)
        apps = with_platforms(signed.apps, self._directory)
        changes = await signed.read(lambda raw: tag_change(raw, apps))
        targets = sum(len(by_token) for _, by_token in changes)
        await self._limiter.enter_list(request, signed.apps.appkeys[0], targets)
        return signed, changes


class TagInfoEndpoint:
    """POST /v2/deviceinfo"""

    def __init__(
        self, authenticator: Authenticator, tags: StringTags, directory: AppDirectory, limiter: RequestLimiter
    ) -> None:
        self._authenticator = authenticator
        self._tags = tags
        self._directory = directory
        self._limiter = limiter

    async def on_post(self, request: Request, response: Response) -> None:
        signed = await self._authenticator.authenticate(request, listed_apps)
        apps = with_platforms(signed.apps, self._directory)
        queries = await signed.read(lambda raw: tag_query(raw, apps))
        targets = sum(len(query.tokens) for query in queries)
        await self._limiter.enter_list(request, signed.apps.appkeys[0], targets)
        answer(response, query_reply(signed.apps, queries, await self._tags.of(queries)))
