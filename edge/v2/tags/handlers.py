"""The endpoints of the v2 interface for string tags of devices."""

from falcon.asgi import Request, Response

from edge.core.answers import answer
from edge.core.authentication import Authenticator
from edge.v2.apps import listed_apps, with_platforms
from edge.v2.tags.replies import change_reply, query_reply
from edge.v2.tags.requests import tag_change, tag_query
from edge.v2.tags.string_tags import StringTags
from services.domain.apps import AppDirectory


class TagEndpoint:
    """POST and DELETE /v2/device"""

    def __init__(self, authenticator: Authenticator, tags: StringTags, directory: AppDirectory) -> None:
        self._authenticator = authenticator
        self._tags = tags
        self._directory = directory

    async def on_post(self, request: Request, response: Response) -> None:
        signed, apps, origin = await self._authenticator.authenticate(request, listed_apps)
        changes = tag_change(signed.raw, with_platforms(apps, self._directory))
        answer(response, change_reply(apps, changes, await self._tags.add(changes, origin), "add token done"))

    async def on_delete(self, request: Request, response: Response) -> None:
        signed, apps, origin = await self._authenticator.authenticate(request, listed_apps)
        changes = tag_change(signed.raw, with_platforms(apps, self._directory))
        answer(response, change_reply(apps, changes, await self._tags.remove(changes, origin), "delete token done"))


class TagInfoEndpoint:
    """POST /v2/deviceinfo"""

    def __init__(self, authenticator: Authenticator, tags: StringTags, directory: AppDirectory) -> None:
        self._authenticator = authenticator
        self._tags = tags
        self._directory = directory

    async def on_post(self, request: Request, response: Response) -> None:
        signed, apps, _ = await self._authenticator.authenticate(request, listed_apps)
        queries = tag_query(signed.raw, with_platforms(apps, self._directory))
        answer(response, query_reply(apps, queries, await self._tags.of(queries)))
