"""A push as an HTTP/2 request to Apple, and its response as a result."""

import re
import uuid
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal
from urllib.parse import quote

import msgspec

from services.delivery.channels.http2.headers import POST_HTTPS, literal
from services.domain.apns_payload import MAX_PAYLOAD_BYTES

UNKNOWN = 0


@dataclass(frozen=True, slots=True)
class ApnsPush:
    """One push to one device. `topic` is the app's bundle id; Apple requires priority 5 for background pushes."""

    token: str
    topic: str
    payload: bytes
    msgid: int
    expires_ms: int
    push_type: Literal["alert", "background"] = "alert"
    priority: int = 10
    collapse_id: str | None = None


@dataclass(frozen=True, slots=True)
class ApnsResult:
    """Apple's response: 200, or another status with Apple's reason.

    `timestamp_ms` comes with status 410: the time since which the token is invalid. Status UNKNOWN means that there
    was no response, so Apple may or may not have accepted the push; `reason` then says what happened.
    """

    status: int
    reason: str = ""
    timestamp_ms: int | None = None

    @property
    def is_unknown(self) -> bool:
        return self.status == UNKNOWN


# A push as an HTTP/2 request to Apple's service, and the response as a result.

_APNS_ID_NAMESPACE = uuid.UUID("5d0a9b0e-2f0c-5f0b-9a3d-6b1c2e7f4a10")
_HEADER_VALUE = re.compile(r"[!-~]{1,256}")
_TOKEN = re.compile(r"[0-9A-Za-z]+")
_MAX_COLLAPSE_ID_BYTES = 64


class _Refusal(msgspec.Struct):
    reason: str | None = None
    timestamp: int | None = None


_refusals = msgspec.json.Decoder(_Refusal)


def local_refusal(push: ApnsPush) -> ApnsResult | None:
    """Return Apple's refusal of a certainly invalid push, without a request; None if the push may be valid."""
    if not push.payload:
        return ApnsResult(400, "PayloadEmpty")
    if len(push.payload) > MAX_PAYLOAD_BYTES:
        return ApnsResult(413, "PayloadTooLarge")
    if not push.topic:
        return ApnsResult(400, "MissingTopic")
    if not _HEADER_VALUE.fullmatch(push.topic):
        return ApnsResult(400, "BadTopic")
    if push.collapse_id is not None and not _is_collapse_id(push.collapse_id):
        return ApnsResult(400, "BadCollapseId")
    return None


def header_block(push: ApnsPush, authority: str, provider_token: str) -> bytes:
    """Encode the request's headers (HPACK). The apns-id depends on message id and token only: retries have the same."""
    apns_id = str(uuid.uuid5(_APNS_ID_NAMESPACE, f"{push.msgid}/{push.token}"))
    token = push.token if _TOKEN.fullmatch(push.token) else quote(push.token, safe="")
    fields = [
        POST_HTTPS,
        literal(b":path", f"/3/device/{token}".encode()),
        _shared_headers(authority, provider_token, push.topic, push.push_type, push.priority),
        literal(b"apns-id", apns_id.encode()),
        literal(b"apns-expiration", b"%d" % (push.expires_ms // 1000)),
        literal(b"content-length", b"%d" % len(push.payload)),
    ]
    if push.collapse_id is not None:
        fields.append(literal(b"apns-collapse-id", push.collapse_id.encode()))
    return b"".join(fields)


def parse_response(status: int, body: bytes) -> ApnsResult:
    """Parse Apple's response; without a reason in the body, the result's reason names the status."""
    if status == 200:
        return ApnsResult(200)
    default_reason = "Unregistered" if status == 410 else f"HTTP {status}"
    try:
        refusal = _refusals.decode(body)
    except msgspec.DecodeError:
        return ApnsResult(status, default_reason)
    return ApnsResult(status, refusal.reason or default_reason, refusal.timestamp)


def _is_collapse_id(text: str) -> bool:
    return bool(_HEADER_VALUE.fullmatch(text)) and len(text) <= _MAX_COLLAPSE_ID_BYTES


@lru_cache(maxsize=256)
def _shared_headers(authority: str, provider_token: str, topic: str, push_type: str, priority: int) -> bytes:
    """Encoded headers that are the same for most of an app's pushes."""
    return b"".join(
        (
            literal(b":authority", authority.encode()),
            literal(b"authorization", f"bearer {provider_token}".encode(), secret=True),
            literal(b"apns-topic", topic.encode()),
            literal(b"apns-push-type", push_type.encode()),
            literal(b"apns-priority", str(priority).encode()),
        )
    )
