"""Requests to the simulator, refused as Mozilla's push service refuses them, and as Apple's does where it is stricter.

Sources: the error numbers of autopush's documentation, and Apple's document "Sending web push notifications".
"""

import re
from base64 import urlsafe_b64decode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey

from services.webpush_simulator.subscriptions import base64url

MAX_BODY_BYTES = 4096
MAX_TTL_S = 30 * 86_400
_DAY_MS = 86_400_000
_MAX_CLOCK_SKEW_MS = 60_000
_URGENCIES = ("very-low", "low", "normal", "high")
_PATH = re.compile(r"/wpush/v2/([A-Za-z0-9_.-]{1,200})")
_TTL = re.compile(r"[0-9]{1,12}")
_TOPIC = re.compile(r"[A-Za-z0-9_-]{1,32}")
_VAPID = re.compile(r"vapid +(?=.*\bt=([^, ]+))(?=.*\bk=([^, ]+)).*", re.IGNORECASE)
_CONTACT = re.compile(r"mailto:[^\s<>@]+@[^\s<>@]+\.[^\s<>@]+|https://[^\s<>]+")
_MAX_VERIFIED = 1_000
_FIRST_CODE_OF_NTFY = 10_000
_POINT = 65


class WebPushRefusedError(Exception):
    """The service's refusal.

    `errno`: Mozilla's number, or ntfy's code, 0 for none. `reason`: Apple's word, "" for none.
    """

    def __init__(self, status: int, errno: int = 0, reason: str = "") -> None:
        super().__init__(f"{status} {errno or reason}")
        self.status = status
        self.errno = errno
        self.reason = reason

    def body(self) -> bytes:
        """Return the JSON of the answer."""
        if self.reason:
            return msgspec.json.encode({"reason": self.reason})
        if self.errno >= _FIRST_CODE_OF_NTFY:
            return msgspec.json.encode({"code": self.errno, "http": self.status, "error": "by the simulator"})
        body = {"code": self.status, "errno": self.errno, "error": "Refused", "message": "by the simulator"}
        return msgspec.json.encode(body) if self.errno else b""


@dataclass(frozen=True, slots=True)
class AcceptedMessage:
    """A message for a subscription, as it was sent: still encrypted. `topic`: "" for none."""

    token: str
    ttl_s: int
    urgency: str
    topic: str
    body: bytes


class _Claims(msgspec.Struct):
    aud: str
    exp: int
    sub: str | None = None


def token_of(headers: Mapping[str, str]) -> str:
    """Return the token in the request's path. RefusedError: it is no path of a subscription, or no POST."""
    path = _PATH.fullmatch(headers.get(":path", ""))
    if path is None:
        raise WebPushRefusedError(404, 102)
    if headers.get(":method") != "POST":
        raise WebPushRefusedError(405)
    return path[1]


def validate(fields: Sequence[tuple[str, str]], body: bytes, token: str) -> AcceptedMessage:
    """Read a request to the subscription of this token. RefusedError."""
    headers = dict(fields)
    repeated = [name for name, count in Counter(name for name, _ in fields).items() if count > 1]
    if {"ttl", "topic", "urgency", "authorization", "content-encoding"} & set(repeated):
        raise WebPushRefusedError(400)
    if "ttl" not in headers:
        raise WebPushRefusedError(400, 111)
    if not _TTL.fullmatch(headers["ttl"]):
        raise WebPushRefusedError(400, 114)
    topic = headers.get("topic", "")
    if "topic" in headers and not _TOPIC.fullmatch(topic):
        raise WebPushRefusedError(400, 113)
    urgency = headers.get("urgency", "normal")
    if urgency not in _URGENCIES:
        raise WebPushRefusedError(400)
    if body and headers.get("content-encoding") != "aes128gcm":
        raise WebPushRefusedError(400, 110)
    if len(body) > MAX_BODY_BYTES:
        raise WebPushRefusedError(413, 104)
    return AcceptedMessage(token, min(int(headers["ttl"]), MAX_TTL_S), urgency, topic, body)


class VapidTokens:
    """Checks the tokens by which apps prove that subscriptions are their own (RFC 8292)."""

    def __init__(self) -> None:
        self._verified: dict[tuple[str, str], _Claims] = {}

    def check(self, authorization: str | None, application_key: str | None, origin: str | None, now_ms: int) -> None:
        """RefusedError: no token, not that of the subscription's key, for another service, expired, or too long.

        `application_key`, `origin`: None where they are not known.
        """
        found = _VAPID.fullmatch(authorization or "")
        if found is None or application_key not in (None, found[2]):
            raise WebPushRefusedError(401, 109)
        try:
            claims = self._verified.get((found[1], found[2])) or self._verify(found[1], found[2])
        except (JoseError, ValueError, msgspec.ValidationError):
            raise WebPushRefusedError(401, 109) from None
        is_expired = claims.exp * 1000 + _MAX_CLOCK_SKEW_MS < now_ms
        if origin not in (None, claims.aud) or is_expired or claims.exp * 1000 > now_ms + _DAY_MS:
            raise WebPushRefusedError(401, 109)
        if claims.sub is None or not _CONTACT.fullmatch(claims.sub):
            raise WebPushRefusedError(403, reason="BadJwtToken")

    def _verify(self, token: str, public_key: str) -> _Claims:
        """Check the signature by the public key; return the claims."""
        point = urlsafe_b64decode(public_key + "=" * (-len(public_key) % 4))
        if len(point) != _POINT:
            raise ValueError("the key is no uncompressed point of P-256")
        x, y = base64url(point[1:33]), base64url(point[33:])
        key = ECKey.import_key({"kty": "EC", "crv": "P-256", "x": x, "y": y})
        claims = msgspec.convert(jwt.decode(token, key, algorithms=["ES256"]).claims, _Claims)
        if len(self._verified) >= _MAX_VERIFIED:
            self._verified.clear()
        self._verified[token, public_key] = claims
        return claims
