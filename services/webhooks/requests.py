"""The requests of webhooks: batches of events in JSON, signed, or a text message for a chat service."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from protos.registry.v1.apps_pb2 import WebhookForm
from services.domain.events import timestamp
from services.domain.push_endpoints import Endpoint
from services.domain.webhooks import signature
from services.webhooks.subscriptions import Subscriber

MAX_EVENTS = 500
MAX_BODY_BYTES = 512 * 1024
MAX_LINES = 20
"""Events that one message to a chat service tells; the others are counted."""

_encode = msgspec.json.encode


class Batch(NamedTuple):
    """The parts of a request that are the same at each attempt: its id, its body, and the number of events in it."""

    message_id: str
    body: bytes
    events: int


def make_batch(
    form: "WebhookForm.ValueType", subscriber: Subscriber, events: Sequence[Mapping[str, Any]], now_ms: int
) -> Batch:
    """Return the request with the first events, as many as fit, at least one. The same events give the same id."""
    encoded: list[bytes] = []
    size = 0
    for event in events[:MAX_EVENTS]:
        line = _encode(event)
        size += len(line) + 1
        if encoded and size > MAX_BODY_BYTES:
            break
        encoded.append(line)
    chosen = events[: len(encoded)]
    ids = "\0".join(event["id"] for event in chosen)
    message_id = f"msg_{hashlib.blake2b(ids.encode(), digest_size=16).hexdigest()}"
    if is_chat(form):
        return Batch(message_id, _encode(_CHATS[form](_text(subscriber.name(), chosen))), len(chosen))
    team_id = subscriber.team_id
    of = {"team_id": team_id} if team_id else {"appkey": subscriber.scope}
    data = {**of, "events": [msgspec.Raw(line) for line in encoded]}
    body = _encode({"type": "batch", "timestamp": timestamp(now_ms), "data": data})
    return Batch(message_id, body, len(chosen))


def http_request(endpoint: Endpoint, batch: Batch, secrets: Sequence[str], now_ms: int) -> bytes:
    """Return the bytes of one attempt. `secrets`: those that sign it; none for a chat service."""
    headers = [
        ("host", endpoint.authority),
        ("content-type", "application/json"),
        ("content-length", str(len(batch.body))),
        ("user-agent", "Carillon-Webhooks/1"),
        ("webhook-id", batch.message_id),
    ]
    if secrets:
        timestamp_s = now_ms // 1000
        headers.append(("webhook-timestamp", str(timestamp_s)))
        headers.append(("webhook-signature", signature(secrets, batch.message_id, timestamp_s, batch.body)))
    lines = b"".join(f"{name}: {value}\r\n".encode() for name, value in headers)
    return b"POST %b HTTP/1.1\r\n%b\r\n%b" % (endpoint.target.encode(), lines, batch.body)


def is_chat(form: "WebhookForm.ValueType") -> bool:
    """Return whether the form is a text message for a chat service, which knows no signatures."""
    return form in _CHATS


def refused_by_chat(form: "WebhookForm.ValueType", body: bytes) -> str:
    """Return the reason for which a chat service that answered 200 did not take the message; "" if it took it."""
    if not is_chat(form) or form == WebhookForm.WEBHOOK_FORM_SLACK:
        return ""
    try:
        answer = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return "the answer is no JSON object"
    codes = [answer[name] for name in ("errcode", "code", "StatusCode") if name in answer]
    if not codes:
        return "the answer has no code"
    return next((f"code {str(code)[:20]}" for code in codes if code != 0), "")


def _text(name: str, events: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"{event['timestamp']} {event['type']} {_said(event['data'])}" for event in events[:MAX_LINES]]
    if len(events) > MAX_LINES:
        lines.append(f"… and {len(events) - MAX_LINES} more")
    return "\n".join([f"Carillon, {name}", *lines])


def _said(data: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in data.items() if value is not None)


_CHATS: Mapping["WebhookForm.ValueType", Callable[[str], dict[str, Any]]] = MappingProxyType(
    {
        WebhookForm.WEBHOOK_FORM_SLACK: lambda text: {"text": text},
        WebhookForm.WEBHOOK_FORM_DINGTALK: lambda text: {"msgtype": "text", "text": {"content": text}},
        WebhookForm.WEBHOOK_FORM_FEISHU: lambda text: {"msg_type": "text", "content": {"text": text}},
        WebhookForm.WEBHOOK_FORM_WECOM: lambda text: {"msgtype": "text", "text": {"content": text}},
    }
)
