"""The HTTP request that a WebSocket begins with (RFC 6455, 4.2), and the answers to it."""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Sequence
from hashlib import sha1
from http import HTTPStatus
from typing import NamedTuple

import httptools

from services.runtime.http.client_address import FORWARDED_HEADER

MAX_HEAD_BYTES = 16 * 1024
"""Upper bound of a request's head."""

_VERSION = b"13"
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY_BYTES = 16


class UpgradeError(Exception):
    """A request that is refused with this HTTP status, and why, in words for people."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Upgrade(NamedTuple):
    """A request to open a WebSocket. `forwarded`: the values of its X-Forwarded-For headers, in order."""

    key: bytes
    subprotocols: Sequence[str]
    forwarded: Sequence[str]


class UpgradeReader:
    """Reads the head of one request, which must be for `path`, in as many pieces as it comes."""

    __slots__ = ("_headers", "_is_complete", "_parser", "_path", "_size", "_target")

    def __init__(self, path: bytes) -> None:
        self._path = path
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._headers: dict[bytes, list[bytes]] = {}
        self._target = b""
        self._size = 0
        self._is_complete = False

    def read(self, received: bytes) -> tuple[Upgrade, bytes] | None:
        """Return the request, and the bytes after its head, once the head is complete; None before.

        UpgradeError: it is no request that opens a WebSocket.
        """
        assert self._parser is not None
        try:
            self._parser.feed_data(received)
        except httptools.HttpParserUpgrade as upgrade:
            (end,) = upgrade.args
            return self._upgrade(self._parser.get_method()), received[end:]
        except httptools.HttpParserError:
            if not self._is_complete:
                raise UpgradeError(HTTPStatus.BAD_REQUEST, "this is no HTTP request") from None
        if self._is_complete:
            raise UpgradeError(HTTPStatus.BAD_REQUEST, "this port serves only requests that upgrade to WebSocket")
        self._size += len(received)
        if self._size > MAX_HEAD_BYTES:
            raise UpgradeError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a head has {MAX_HEAD_BYTES} bytes at most")
        return None

    def release(self) -> None:
        """Let go of the parser, which refers to this reader, so that no garbage collector is needed for them."""
        self._parser = None

    # --- callbacks of the parser

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.setdefault(name.lower(), []).append(value)

    def on_headers_complete(self) -> None:
        self._is_complete = True

    # ---

    def _upgrade(self, method: bytes) -> Upgrade:
        """Return the request; UpgradeError when it opens no WebSocket of the supported version."""
        if self._target.partition(b"?")[0] != self._path:
            raise UpgradeError(HTTPStatus.NOT_FOUND, "this port serves no such path")
        if method != b"GET":
            raise UpgradeError(HTTPStatus.METHOD_NOT_ALLOWED, "a WebSocket begins with GET")
        if b"websocket" not in (each.lower() for each in self._list(b"upgrade")):
            raise UpgradeError(HTTPStatus.BAD_REQUEST, "Upgrade must be websocket")
        version = self._one(b"sec-websocket-version")
        if version != _VERSION:
            status = HTTPStatus.UPGRADE_REQUIRED if version.isdigit() else HTTPStatus.BAD_REQUEST
            raise UpgradeError(status, "Sec-WebSocket-Version must be 13")
        key = self._one(b"sec-websocket-key")
        if not _is_key(key):
            raise UpgradeError(HTTPStatus.BAD_REQUEST, "Sec-WebSocket-Key must be 16 bytes in base64")
        return Upgrade(
            key,
            [each.decode("latin-1") for each in self._list(b"sec-websocket-protocol")],
            [each.decode("latin-1") for each in self._headers.get(FORWARDED_HEADER, ())],
        )

    def _one(self, name: bytes) -> bytes:
        """Return the value of a header that comes once; b"" when it is missing or repeated."""
        values = self._headers.get(name, ())
        return values[0].strip() if len(values) == 1 else b""

    def _list(self, name: bytes) -> list[bytes]:
        """Return the entries of a header that is a list, which may be divided among several lines."""
        return [entry.strip() for value in self._headers.get(name, ()) for entry in value.split(b",")]


def accepted(key: bytes, subprotocol: str | None) -> bytes:
    """Return the answer to a request with this key. `subprotocol`: the one of its subprotocols that is chosen."""
    proof = b64encode(sha1(key + _GUID, usedforsecurity=False).digest())
    head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
    chosen = b"" if subprotocol is None else b"\r\nSec-WebSocket-Protocol: " + subprotocol.encode()
    return head + proof + chosen + b"\r\n\r\n"


def refused(error: UpgradeError) -> bytes:
    """Return the answer to a request that is refused."""
    status, body = error.status, f"{error}\n".encode()
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
    if status is HTTPStatus.UPGRADE_REQUIRED:
        head += f"Upgrade: websocket\r\nSec-WebSocket-Version: {_VERSION.decode()}\r\n"
    elif status is HTTPStatus.METHOD_NOT_ALLOWED:
        head += "Allow: GET\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def _is_key(key: bytes) -> bool:
    try:
        return len(b64decode(key, validate=True)) == _KEY_BYTES
    except binascii.Error:
        return False
