"""The endpoints of the v2 interface for devices: the device protocol over HTTP, and invalid iOS tokens."""

import asyncio

from falcon.asgi import Request, Response

from edge.core.answers import answer, set_status
from edge.core.authentication import Authenticator
from edge.core.origins import Origins
from edge.core.parsing.body import read_body
from edge.v2.apps import listed_ios_apps
from edge.v2.device.frames import FrameHandler
from edge.v2.device.invalid_tokens import InvalidTokens
from edge.v2.device.replies import InvalidTokensReply
from services.domain.device_protocol import answers, frames
from services.domain.text import without_byte_order_mark
from services.runtime.errors import CarillonError


class DeviceEndpoint:
    """POST /device/v1: answers are frames, also those to errors."""

    def __init__(self, frames: FrameHandler, origins: Origins) -> None:
        self._frames = frames
        self._origins = origins

    async def on_post(self, request: Request, response: Response) -> None:
        payload = without_byte_order_mark(await read_body(request, frames.MAX_FRAME_BYTES))
        response.context.result = 0
        try:
            frame = await self._frames.answer(payload, self._origins.of(request))
        except CarillonError as error:
            response.context.result = error.result
            set_status(response, error)
            frame = answers.error_answer(frames.request_id(payload), error)
        response.data = answers.encode(frame)


class InvalidTokensEndpoint:
    """POST /v2/errortoken"""

    def __init__(self, authenticator: Authenticator, invalid_tokens: InvalidTokens) -> None:
        self._authenticator = authenticator
        self._invalid_tokens = invalid_tokens

    async def on_post(self, request: Request, response: Response) -> None:
        signed = await self._authenticator.authenticate(request, listed_ios_apps)
        appkeys = signed.apps.appkeys
        found = await asyncio.gather(*map(self._invalid_tokens.of, appkeys))
        data = dict(zip(appkeys, found, strict=True))
        answer(response, InvalidTokensReply(result=0, desc="ok", data=data))
