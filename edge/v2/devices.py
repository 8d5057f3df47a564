"""Endpoints of the v2 interface for devices: the device protocol over HTTP, and invalid iOS tokens."""

import asyncio
import heapq
import itertools
from collections.abc import Sequence
from typing import Annotated

import msgspec
from falcon.asgi import Request, Response

from edge.core.admission import Admission, Origins
from edge.core.answers import Reply, answer, set_status
from edge.core.parsing.body import read_body
from edge.core.parsing.fields import Sign, Success, Text, described
from edge.v2.apps import SIGN_BY_LIST, IosApps, listed_ios_apps
from edge.v2.device_frames import FrameHandler
from protos.registry.v1.registry_pb2 import InvalidToken, ListInvalidTokensRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.apps import AppDirectory
from services.domain.channel_credentials.webpush import public_key_of
from services.domain.device_protocol import answers, frames
from services.domain.text import without_byte_order_mark
from services.errors import CarillonError, NotFoundError
from services.replica.peers import Peers

# iOS tokens that Apple reported as invalid.

MAX_INVALID_TOKENS = 100_000
"""Limit of tokens listed per app; the newest are listed."""

_PAGE = 5000


class InvalidTokens:
    """Lists invalid tokens from every registry instance, page by page."""

    def __init__(self, peers: Peers) -> None:
        self._registries = [RegistryServiceStub(channel) for channel in peers.all("registry")]

    async def of(self, appkey: str) -> list[str]:
        """Return the app's invalid tokens, newest first."""
        pages = await asyncio.gather(*(self._of_instance(index, appkey) for index in range(len(self._registries))))
        merged = heapq.merge(*pages, key=lambda invalid: (-invalid.removed_ms, invalid.token))
        return [invalid.token for invalid in itertools.islice(merged, MAX_INVALID_TOKENS)]

    async def _of_instance(self, instance: int, appkey: str) -> Sequence[InvalidToken]:
        found: list[InvalidToken] = []
        while len(found) < MAX_INVALID_TOKENS:
            request = ListInvalidTokensRequest(appkey=appkey, after=found[-1] if found else None, limit=_PAGE)
            page = (await self._registries[instance].ListInvalidTokens(request)).tokens
            found += page
            if len(page) < _PAGE:
                break
        return found


# Answers about devices.


class InvalidTokensReply(Reply, frozen=True):
    result: Success
    desc: Text
    data: Annotated[dict[str, list[str]], described("Invalid tokens by appkey, newest first.")]


class WebPushKeyReply(Reply, frozen=True):
    result: Success
    key: Annotated[
        str,
        described("The applicationServerKey of `PushManager.subscribe`: 87 characters of base64url.", "BNvVWWydguLM…"),
    ]


class DeviceEndpoint:
    """POST /device/v1: answers are frames, also those to errors.

    A page may read them if the app names its origin. A preflight request does not say which app is meant, so every
    preflight is allowed. This is safe: the endpoint uses no cookies, so a page can send nothing that any other program
    could not send.
    """

    def __init__(self, frames: FrameHandler, origins: Origins) -> None:
        self._frames = frames
        self._origins = origins

    async def on_post(self, request: Request, response: Response) -> None:
        payload = without_byte_order_mark(await read_body(request, frames.MAX_FRAME_BYTES))
        response.context.result = 0
        if (origin := request.get_header("Origin")) is not None:
            response.set_header("Vary", "Origin")
            if self._frames.allows_origin(payload, origin):
                response.set_header("Access-Control-Allow-Origin", origin)
                response.set_header("Access-Control-Expose-Headers", "Retry-After")
        try:
            frame = await self._frames.answer(payload, self._origins.of(request))
        except CarillonError as error:
            response.context.result = error.result
            set_status(response, error)
            frame = answers.error_answer(frames.request_id(payload), error)
        response.data = answers.encode(frame)

    async def on_options(self, request: Request, response: Response) -> None:
        response.set_header("Allow", "POST")
        response.set_headers(_PREFLIGHT)


_PREFLIGHT = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "POST",
    "Access-Control-Allow-Headers": "Content-Type",
    "Access-Control-Max-Age": "86400",
}


class WebPushKeyEndpoint:
    """GET /device/v1/webpush-key?appkey=K: the public key for a page that subscribes to the app's pushes."""

    def __init__(self, apps: AppDirectory) -> None:
        self._apps = apps

    async def on_get(self, request: Request, response: Response) -> None:
        response.set_header("Access-Control-Allow-Origin", "*")
        app = self._apps.get(request.get_param("appkey") or "")
        key = "" if app is None else public_key_of(app)
        if not key:
            raise NotFoundError("the app has no Web Push key; its operator makes one: carillon app set K --webpush new")
        answer(response, WebPushKeyReply(result=0, key=key))


class InvalidTokensEndpoint:
    """POST /v2/errortoken"""

    def __init__(self, admission: Admission, invalid_tokens: InvalidTokens) -> None:
        self._admission = admission
        self._invalid_tokens = invalid_tokens

    async def on_post(self, request: Request, response: Response) -> None:
        signed = await self._admission.admit(request, listed_ios_apps)
        appkeys = signed.apps.appkeys
        found = await asyncio.gather(*map(self._invalid_tokens.of, appkeys))
        data = dict(zip(appkeys, found, strict=True))
        answer(response, InvalidTokensReply(result=0, desc="ok", data=data))


# Requests about devices, with their limits and descriptions. They have no fields beside those of authentication.


class InvalidTokensRequest(msgspec.Struct, frozen=True):
    """POST /v2/errortoken."""

    appkey: Annotated[IosApps, described("An app or a list of apps.")]
    sign: Annotated[Sign, SIGN_BY_LIST]
