"""Sends to iOS devices through Apple's push service, over HTTP/2."""

import asyncio
import json
import ssl
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

import httpx
import msgspec

from protos.push.v1.push_pb2 import Message

IN_FLIGHT = 100
"""Requests under way at once."""

DEADLINE_S = 20.0
"""How long one request may take."""

_IDS = uuid.UUID("5d0a9b0e-2f0c-5f0b-9a3d-6b1c2e7f4a10")


@dataclass(frozen=True, slots=True)
class ApnsPush:
    """One push to one device. `topic` is the app's bundle id; a background push has priority 5."""

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
    """Apple's answer: 200, or another status with Apple's reason; `timestamp_ms` with 410: dead since then.

    Status 0: there was no answer, so whether Apple took the push is unknown; `reason` says what happened.
    """

    status: int
    reason: str = ""
    timestamp_ms: int | None = None

    @property
    def unknown(self) -> bool:
        return self.status == 0


class _Refusal(msgspec.Struct):
    reason: str
    timestamp: int | None = None


class ApnsSender:
    """One HTTP/2 connection, made when it is first needed and again when it broke.

    `authority`: PEM text of the certificates to trust; None for the system's.
    """

    def __init__(self, url: str, authority: str | None = None, deadline_s: float = DEADLINE_S) -> None:
        self._deadline_s = deadline_s
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._client = httpx.AsyncClient(
            base_url=url,
            http1=False,
            http2=True,
            verify=ssl.create_default_context(cadata=authority),
            timeout=None,  # noqa: S113  # the deadline is on the whole request
            limits=httpx.Limits(max_connections=4, keepalive_expiry=300),
            trust_env=False,
        )

    async def send(self, batch: Sequence[ApnsPush]) -> list[ApnsResult]:
        """The results, in the order of the batch; a failed request is a result and raises nothing."""
        return list(await asyncio.gather(*(self._send(push) for push in batch)))

    async def close(self) -> None:
        await self._client.aclose()

    async def _send(self, push: ApnsPush) -> ApnsResult:
        async with self._slots:
            try:
                async with asyncio.timeout(self._deadline_s):
                    path = f"/3/device/{quote(push.token, safe='')}"
                    return _result(await self._client.post(path, content=push.payload, headers=_headers(push)))
            except TimeoutError:
                return ApnsResult(0, "no answer in time")
            except (httpx.TransportError, OSError) as error:
                return ApnsResult(0, f"connection lost: {error or type(error).__name__}")


def payload(message: Message) -> bytes:
    """The JSON that the device is sent.

    A notification has its text, or the dictionary that the content holds, as the alert. A pass-through message is a
    background push with its content under `content`. `extra` stands beside `aps` in both. A badge below 0 asks to count
    up, which Apple cannot: the key is left out and the badge stays as it is.
    """
    ios = message.ios
    body: dict[str, Any]
    if message.is_notif:
        aps: dict[str, Any] = {"alert": _alert(message)}
        if ios.HasField("badge") and ios.badge >= 0:
            aps["badge"] = ios.badge
        if ios.sound:
            aps["sound"] = ios.sound
        if ios.content_available:
            aps["content-available"] = 1
        if ios.category:
            aps["category"] = ios.category
        body = {"aps": aps}
    else:
        body = {"aps": {"content-available": 1}, "content": _content(message)}
    if message.HasField("extra"):
        body["extra"] = message.extra
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _alert(message: Message) -> Any:
    content = _content(message)
    if isinstance(content, str) and message.ios.title:
        return {"title": message.ios.title, "body": content}
    return content


def _content(message: Message) -> str | dict[str, Any]:
    """The content's dictionary where it is one, else its text."""
    if message.ios.content_is_json:
        try:
            content = json.loads(message.content)
        except ValueError:
            return message.content
        if isinstance(content, dict):
            return content
    return message.content


def _headers(push: ApnsPush) -> dict[str, str]:
    """A push that is sent again has the same apns-id."""
    headers = {
        "apns-id": str(uuid.uuid5(_IDS, f"{push.msgid}/{push.token}")),
        "apns-push-type": push.push_type,
        "apns-priority": str(push.priority),
        "apns-expiration": str(push.expires_ms // 1000),
    }
    if push.topic:
        headers["apns-topic"] = push.topic
    if push.collapse_id is not None:
        headers["apns-collapse-id"] = push.collapse_id
    return headers


def _result(response: httpx.Response) -> ApnsResult:
    if response.status_code == 200:
        return ApnsResult(200)
    try:
        refusal = msgspec.json.decode(response.content, type=_Refusal)
    except msgspec.DecodeError:
        return ApnsResult(response.status_code, f"HTTP {response.status_code}")
    return ApnsResult(response.status_code, refusal.reason, refusal.timestamp)
