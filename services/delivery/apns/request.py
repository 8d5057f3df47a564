"""A push as an HTTP/2 request to Apple's service, and the service's answer as a result."""

import re
import uuid
from functools import lru_cache
from urllib.parse import quote

import msgspec

from services.delivery.apns.push import ApnsPush, ApnsResult
from services.delivery.http2.headers import literal
from services.domain.apns.payload import MAX_PAYLOAD_BYTES

_IDS = uuid.UUID("5d0a9b0e-2f0c-5f0b-9a3d-6b1c2e7f4a10")
_VALUE = re.compile(r"[!-~]{1,256}")
_POST = b"\x83"
_HTTPS = b"\x87"
_TOKEN = re.compile(r"[0-9A-Za-z]+")


class _Refusal(msgspec.Struct):
    reason: str | None = None
    timestamp: int | None = None


_refusals = msgspec.json.Decoder(_Refusal)


def fault(push: ApnsPush) -> ApnsResult | None:
    """Apple's answer where it is known without asking."""
    if not push.payload:
        return ApnsResult(400, "PayloadEmpty")
    if len(push.payload) > MAX_PAYLOAD_BYTES:
        return ApnsResult(413, "PayloadTooLarge")
    if not push.topic:
        return ApnsResult(400, "MissingTopic")
    if not _VALUE.fullmatch(push.topic):
        return ApnsResult(400, "BadTopic")
    if push.collapse_id is not None and not (_VALUE.fullmatch(push.collapse_id) and len(push.collapse_id) <= 64):
        return ApnsResult(400, "BadCollapseId")
    return None


def header_block(push: ApnsPush, authority: str, provider_token: str) -> bytes:
    """The request's headers, encoded. A push that is sent again has the same apns-id."""
    apns_id = str(uuid.uuid5(_IDS, f"{push.msgid}/{push.token}"))
    token = push.token if _TOKEN.fullmatch(push.token) else quote(push.token, safe="")
    fields = [
        _POST + _HTTPS,
        literal(b":path", f"/3/device/{token}".encode()),
        _shared(authority, provider_token, push.topic, push.push_type, push.priority),
        literal(b"apns-id", apns_id.encode()),
        literal(b"apns-expiration", b"%d" % (push.expires_ms // 1000)),
        literal(b"content-length", b"%d" % len(push.payload)),
    ]
    if push.collapse_id is not None:
        fields.append(literal(b"apns-collapse-id", push.collapse_id.encode()))
    return b"".join(fields)


def result(status: int, body: bytes) -> ApnsResult:
    """What the answer says; a reason that Apple leaves out, or a body that is not Apple's, is named by the status."""
    if status == 200:
        return ApnsResult(200)
    unnamed = "Unregistered" if status == 410 else f"HTTP {status}"
    try:
        refusal = _refusals.decode(body)
    except msgspec.DecodeError:
        return ApnsResult(status, unnamed)
    return ApnsResult(status, refusal.reason or unnamed, refusal.timestamp)


@lru_cache(maxsize=256)
def _shared(authority: str, provider_token: str, topic: str, push_type: str, priority: int) -> bytes:
    """What an app's pushes have in common."""
    return b"".join(
        (
            literal(b":authority", authority.encode()),
            literal(b"authorization", f"bearer {provider_token}".encode(), secret=True),
            literal(b"apns-topic", topic.encode()),
            literal(b"apns-push-type", push_type.encode()),
            literal(b"apns-priority", str(priority).encode()),
        )
    )
