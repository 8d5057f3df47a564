"""Request bodies, bounded in size and time."""

import asyncio

import falcon
from falcon.asgi import Request

from services.runtime.errors import InputError

MAX_BODY_BYTES = 1024 * 1024
BODY_S = 30.0
"""How long a sender may take to hand over a body, seconds."""


async def read_body(request: Request, limit: int = MAX_BODY_BYTES) -> bytes:
    """The whole body. HTTP 413: larger than `limit` bytes; HTTP 408: too slow; InputError: cut off."""
    announced = request.content_length
    if announced is not None and announced > limit:
        raise _too_large(limit)
    try:
        async with asyncio.timeout(BODY_S):
            body = await _collect(request, limit)
    except TimeoutError:
        raise falcon.HTTPError(408, description=f"the body did not arrive within {BODY_S:.0f} s") from None
    if announced is not None and len(body) != announced:
        raise InputError("the body was cut off")
    return body


async def _collect(request: Request, limit: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream:
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _too_large(limit: int) -> falcon.HTTPError:
    return falcon.HTTPError(413, description=f"the body is larger than {limit} bytes")
