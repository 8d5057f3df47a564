"""Validation of requests to the simulator, by Apple's documentation of the APNs provider API."""

import re
import uuid
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass

import msgspec

from services.domain.apns_payload import MAX_PAYLOAD_BYTES
from services.push_simulator.connection import HttpRequest

_PATH = re.compile(r"/3/device/([^/?]*)")
_TOKEN = re.compile(r"(?:[0-9a-fA-F]{2}){32,100}")
_PUSH_TYPES = frozenset(
    (
        "alert",
        "background",
        "complication",
        "controls",
        "fileprovider",
        "liveactivity",
        "location",
        "mdm",
        "pushtotalk",
        "voip",
        "widgets",
    )
)


@dataclass(frozen=True, slots=True)
class ReceivedPush:
    """An accepted push; `headers` are the request headers whose names start with apns-."""

    token: str
    headers: Mapping[str, str]
    payload: bytes

    @property
    def body(self) -> object:
        return msgspec.json.decode(self.payload)


class ApnsRefusedError(Exception):
    """Apple's refusal of a request; `timestamp_ms`: when the device token became invalid (status 410)."""

    def __init__(self, status: int, reason: str, timestamp_ms: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.timestamp_ms = timestamp_ms


def validate(request: HttpRequest, topics: Container[str] = ()) -> ReceivedPush:
    """Parse a request into a push; `topics`: the existing topics (empty: all). RefusedError: Apple would refuse it."""
    headers = dict(request.headers)
    token = _token_in_path(headers)
    repeated = [name for name, count in Counter(name for name, _ in request.headers).items() if count > 1]
    if any(name.startswith("apns-") for name in repeated):
        raise ApnsRefusedError(400, "DuplicateHeaders")
    _check_headers(headers)
    if not request.body:
        raise ApnsRefusedError(400, "PayloadEmpty")
    if len(request.body) > MAX_PAYLOAD_BYTES:
        raise ApnsRefusedError(413, "PayloadTooLarge")
    if not _TOKEN.fullmatch(token):
        raise ApnsRefusedError(400, "BadDeviceToken")
    if topics and headers["apns-topic"] not in topics:
        raise ApnsRefusedError(400, "TopicDisallowed")
    apns_headers = {name: value for name, value in headers.items() if name.startswith("apns-")}
    return ReceivedPush(token, apns_headers, bytes(request.body))


def _token_in_path(headers: Mapping[str, str]) -> str:
    path = _PATH.fullmatch(headers.get(":path", ""))
    if not path:
        raise ApnsRefusedError(404, "BadPath")
    if headers.get(":method") != "POST":
        raise ApnsRefusedError(405, "MethodNotAllowed")
    if not path[1]:
        raise ApnsRefusedError(400, "MissingDeviceToken")
    return path[1]


def _check_headers(headers: Mapping[str, str]) -> None:
    if "apns-id" in headers and not is_uuid(headers["apns-id"]):
        raise ApnsRefusedError(400, "BadMessageId")
    if not headers.get("apns-topic"):
        raise ApnsRefusedError(400, "MissingTopic")
    push_type = headers.get("apns-push-type", "alert")
    if push_type not in _PUSH_TYPES:
        raise ApnsRefusedError(400, "InvalidPushType")
    priority = headers.get("apns-priority", "5" if push_type == "background" else "10")
    if priority not in ("1", "5", "10") or (push_type == "background" and priority == "10"):
        raise ApnsRefusedError(400, "BadPriority")
    if not re.fullmatch(r"[0-9]{1,18}", headers.get("apns-expiration", "0")):
        raise ApnsRefusedError(400, "BadExpirationDate")
    if len(headers.get("apns-collapse-id", "").encode()) > 64:
        raise ApnsRefusedError(400, "BadCollapseId")


def is_uuid(text: str) -> bool:
    """Return whether the text is a UUID in canonical form."""
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False
