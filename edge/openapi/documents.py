"""The published documents by name, and the paths where they are served."""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec
from falcon.asgi import Request, Response

from edge.openapi import android, asyncapi, ios, v2
from edge.openapi.schema import Json

DOCUMENTS: Mapping[str, Callable[[], Json]] = MappingProxyType(
    {"android": android.document, "ios": ios.document, "v2": v2.document, "device": asyncapi.document}
)
OPENAPI_PATH = "/openapi.json"
ASYNCAPI_PATH = "/device/v1/asyncapi.json"


@functools.cache
def document_bytes(name: str) -> bytes:
    """Return a document as it is served and stored in docs/openapi."""
    return msgspec.json.format(msgspec.json.encode(DOCUMENTS[name]()), indent=2) + b"\n"


class DocumentEndpoint:
    """GET of a document, which is made at the first request."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def on_get(self, request: Request, response: Response) -> None:
        response.content_type = "application/json"
        response.data = document_bytes(self._name)
