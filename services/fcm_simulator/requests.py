"""Requests to the simulator, refused as Google refuses them (FCM HTTP v1, its reference and its page of error codes).

Names are in camel case. Of `androidV2`, `apns` and `webpush` only that they are objects is checked.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

MAX_PAYLOAD_BYTES = 4096
MAX_TTL_S = 28 * 86_400
FCM_ERROR = "type.googleapis.com/google.firebase.fcm.v1.FcmError"
BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"
NOT_A_TOKEN = "The registration token is not a valid FCM registration token"  # noqa: S105  # Google's words

_PATH = re.compile(r"/v1/projects/([^/:]+)/messages:send")
_TTL = re.compile(r"([0-9]{1,9})(?:\.[0-9]{1,9})?s")
_TOKEN = re.compile(r"[A-Za-z0-9_-]+:[A-Za-z0-9_-]+|[c-f][A-Za-z0-9_-]{21}")
_FID = re.compile(r"[c-f][A-Za-z0-9_-]{21}")
_RESERVED = re.compile(r"from|message_type|google\..*|gcm\.notification\..*")
_WHERE = re.compile(r"(.*?)(?: - at `\$\.?(.*?)`)?")


class FcmRefusedError(Exception):
    """Google's refusal. `status`: its canonical code; `code`: the errorCode of FCM, or ""; `field`: the wrong one."""

    def __init__(self, http: int, status: str, message: str, code: str = "", field: str = "") -> None:
        super().__init__(f"{http} {code or status}")
        self.http = http
        self.status = status
        self.message = message
        self.code = code
        self.field = field

    def body(self) -> bytes:
        """Return the JSON of the answer."""
        details: list[dict[str, Any]] = []
        if self.code:
            details.append({"@type": FCM_ERROR, "errorCode": self.code})
        if self.field:
            violation = {"field": self.field, "description": self.message}
            details.append({"@type": BAD_REQUEST, "fieldViolations": [violation]})
        error = {"code": self.http, "message": self.message, "status": self.status, "details": details}
        return msgspec.json.encode({"error": error})


class _Struct(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Google names a field that it does not know."""


class _Notification(_Struct, frozen=True):
    title: str = ""
    body: str = ""
    image: str = ""


class _Label(_Struct, frozen=True):
    analytics_label: str = ""


class AndroidNotification(_Struct, frozen=True):
    title: str = ""
    body: str = ""
    icon: str = ""
    color: str = ""
    sound: str = ""
    tag: str = ""
    click_action: str = ""
    body_loc_key: str = ""
    body_loc_args: list[str] = []
    title_loc_key: str = ""
    title_loc_args: list[str] = []
    channel_id: str = ""
    ticker: str = ""
    sticky: bool = False
    event_time: str = ""
    local_only: bool = False
    notification_priority: Literal[
        "PRIORITY_UNSPECIFIED", "PRIORITY_MIN", "PRIORITY_LOW", "PRIORITY_DEFAULT", "PRIORITY_HIGH", "PRIORITY_MAX"
    ] = "PRIORITY_UNSPECIFIED"
    default_sound: bool = False
    default_vibrate_timings: bool = False
    default_light_settings: bool = False
    vibrate_timings: list[str] = []
    visibility: Literal["VISIBILITY_UNSPECIFIED", "PRIVATE", "PUBLIC", "SECRET"] = "VISIBILITY_UNSPECIFIED"
    notification_count: int = 0
    light_settings: dict[str, Any] = {}
    image: str = ""
    bypass_proxy_notification: bool = False
    proxy: Literal["PROXY_UNSPECIFIED", "ALLOW", "DENY", "IF_PRIORITY_LOWERED"] = "PROXY_UNSPECIFIED"


class AndroidConfig(_Struct, frozen=True):
    collapse_key: str = ""
    priority: Literal["NORMAL", "HIGH", "normal", "high"] = "NORMAL"
    ttl: str = f"{MAX_TTL_S}s"
    restricted_package_name: str = ""
    data: dict[str, str] = {}
    notification: AndroidNotification | UnsetType = UNSET
    fcm_options: _Label = _Label()
    direct_boot_ok: bool = False
    bandwidth_constrained_ok: bool = False
    restricted_satellite_ok: bool = False


class FcmMessage(_Struct, frozen=True):
    token: str | UnsetType = UNSET
    fid: str | UnsetType = UNSET
    topic: str | UnsetType = UNSET
    condition: str | UnsetType = UNSET
    name: str = ""
    data: dict[str, str] = {}
    notification: _Notification | UnsetType = UNSET
    android: AndroidConfig | UnsetType = UNSET
    android_v2: dict[str, Any] | UnsetType = UNSET
    apns: dict[str, Any] | UnsetType = UNSET
    webpush: dict[str, Any] | UnsetType = UNSET
    fcm_options: _Label = _Label()


class _SendRequest(_Struct, frozen=True):
    message: FcmMessage
    validate_only: bool = False


_requests = msgspec.json.Decoder(_SendRequest)


class ReceivedMessage(NamedTuple):
    """An accepted message. `address`: its token or FID. `is_dry`: Google was asked to validate it only."""

    project_id: str
    address: str
    message: FcmMessage
    is_dry: bool


def project_in_path(headers: Mapping[str, str]) -> str:
    """Return the project that a request names. RefusedError: the path is none of FCM's, or the method is not POST."""
    path = _PATH.fullmatch(headers.get(":path", ""))
    if path is None or headers.get(":method") != "POST":
        raise FcmRefusedError(404, "NOT_FOUND", "Requested entity was not found.")
    return path[1]


def validate(project_id: str, body: bytes) -> ReceivedMessage:
    """Read the body of `messages:send`. RefusedError."""
    try:
        request = _requests.decode(body)
    except msgspec.ValidationError as error:
        what, where = _where(str(error))
        raise FcmRefusedError(400, "INVALID_ARGUMENT", f"Invalid JSON payload received. {what}", field=where) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise FcmRefusedError(400, "INVALID_ARGUMENT", "Invalid JSON payload received.") from None
    message = request.message
    targets = [name for name in ("token", "fid", "topic", "condition") if getattr(message, name) is not UNSET]
    if len(targets) != 1:
        raise _invalid("Exactly one of token, fid, topic or condition is required", "message")
    if message.android is not UNSET and message.android_v2 is not UNSET:
        raise _invalid("android and androidV2 exclude each other", "message.android")
    address = str(getattr(message, targets[0]))
    if targets[0] == "token" and not _TOKEN.fullmatch(address):
        raise _invalid(NOT_A_TOKEN, "message.token")
    if targets[0] == "fid" and not _FID.fullmatch(address):
        raise _invalid("The FID is not valid", "message.fid")
    _check_payload(message)
    return ReceivedMessage(project_id, address, message, request.validate_only)


def _check_payload(message: FcmMessage) -> None:
    android = message.android or AndroidConfig()
    ttl = _TTL.fullmatch(android.ttl)
    if ttl is None or int(ttl[1]) > MAX_TTL_S:
        raise _invalid("Invalid value at 'message.android.ttl': 0s to 2419200s", "message.android.ttl")
    data = {**message.data, **android.data}
    for name in data:
        if _RESERVED.fullmatch(name):
            raise _invalid(f"Invalid data payload key: {name}", "message.data")
    shown = message.notification or _Notification()
    size = sum(len(key.encode()) + len(value.encode()) for key, value in data.items())
    if size + len(shown.title.encode()) + len(shown.body.encode()) > MAX_PAYLOAD_BYTES:
        raise _invalid("Android message is too big", "message")


def _invalid(message: str, field: str) -> FcmRefusedError:
    return FcmRefusedError(400, "INVALID_ARGUMENT", message, "INVALID_ARGUMENT", field)


def _where(text: str) -> tuple[str, str]:
    """Return what msgspec says is wrong, and the path of the field; "" where the whole body is of a wrong type."""
    found = _WHERE.fullmatch(text)
    assert found is not None
    return found[1], found[2] or ("" if text.startswith("Expected") else "message")
