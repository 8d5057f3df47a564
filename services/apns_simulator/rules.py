"""What Apple's push service takes and what it refuses, by Apple's documentation."""

import re
import uuid
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

import msgspec

MAX_PAYLOAD_BYTES = 4096
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
class Received:
    """A push that was accepted; `headers` are those whose names start with apns-."""

    token: str
    headers: Mapping[str, str]
    payload: bytes

    @property
    def body(self) -> object:
        return msgspec.json.decode(self.payload)


class RefusedError(Exception):
    """What Apple would answer instead of 200."""

    def __init__(self, status: int, reason: str, timestamp_ms: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.timestamp_ms = timestamp_ms


@dataclass(slots=True)
class Request:
    headers: list[tuple[str, str]]
    body: bytearray = field(default_factory=bytearray)

    def header(self, name: str) -> str | None:
        return next((value for known, value in self.headers if known == name), None)


def checked(request: Request, topics: Container[str] = ()) -> Received:
    """The push that the request is; `topics`: those that there are, any when empty. RefusedError: with Apple's status
    and reason."""
    headers = dict(request.headers)
    token = _checked_path(headers)
    repeated = [name for name, count in Counter(name for name, _ in request.headers).items() if count > 1]
    if any(name.startswith("apns-") for name in repeated):
        raise RefusedError(400, "DuplicateHeaders")
    _check_headers(headers)
    if not request.body:
        raise RefusedError(400, "PayloadEmpty")
    if len(request.body) > MAX_PAYLOAD_BYTES:
        raise RefusedError(413, "PayloadTooLarge")
    if not _TOKEN.fullmatch(token):
        raise RefusedError(400, "BadDeviceToken")
    if topics and headers["apns-topic"] not in topics:
        raise RefusedError(400, "TopicDisallowed")
    own = {name: value for name, value in headers.items() if name.startswith("apns-")}
    return Received(token, own, bytes(request.body))


def _checked_path(headers: Mapping[str, str]) -> str:
    path = _PATH.fullmatch(headers.get(":path", ""))
    if not path:
        raise RefusedError(404, "BadPath")
    if headers.get(":method") != "POST":
        raise RefusedError(405, "MethodNotAllowed")
    if not path[1]:
        raise RefusedError(400, "MissingDeviceToken")
    return path[1]


def _check_headers(headers: Mapping[str, str]) -> None:
    if not is_id(headers.get("apns-id")):
        raise RefusedError(400, "BadMessageId")
    if not headers.get("apns-topic"):
        raise RefusedError(400, "MissingTopic")
    push_type = headers.get("apns-push-type", "alert")
    if push_type not in _PUSH_TYPES:
        raise RefusedError(400, "InvalidPushType")
    priority = headers.get("apns-priority", "5" if push_type == "background" else "10")
    if priority not in ("1", "5", "10") or (push_type == "background" and priority == "10"):
        raise RefusedError(400, "BadPriority")
    if not re.fullmatch(r"[0-9]{1,18}", headers.get("apns-expiration", "0")):
        raise RefusedError(400, "BadExpirationDate")
    if len(headers.get("apns-collapse-id", "").encode()) > 64:
        raise RefusedError(400, "BadCollapseId")


def is_id(text: str | None) -> bool:
    if text is None:
        return True
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False
