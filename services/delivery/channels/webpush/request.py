"""A message as a Web Push request (RFC 8030): what the service worker gets, shortened to what fits, and the headers."""

from typing import Literal, NamedTuple

from protos.push.v1.push_pb2 import Message
from services.delivery.channels.shortening import shortened
from services.delivery.channels.webpush.encryption import MAX_BODY_BYTES, Subscription, encrypt, max_plaintext_bytes
from services.domain.device_protocol.pushes import PushText, push_fields

SMALL_BODY_BYTES = 2744
"""The largest body that a push service takes which forwards to another one (autopush's bridged endpoints)."""

MAX_TTL_S = 30 * 86_400
"""The longest time for which a push service keeps a message; autopush cuts what is longer."""

Urgency = Literal["very-low", "low", "normal", "high"]


class WebPushText(NamedTuple):
    """The plaintext of a message for all devices. `shortened`: names of the fields that were cut or left out."""

    push: PushText
    shortened: tuple[str, ...]


class WebPushRequest(NamedTuple):
    """One message for one subscription. It is encrypted when it is sent; a retry has the same topic.

    `small`: what is sent in place of `text` to a push service that found that too long.
    """

    subscription: Subscription
    msgid: int
    text: PushText
    small: PushText
    expires_ms: int
    urgency: Urgency

    def body(self, *, is_small: bool = False) -> bytes:
        """Return the encrypted message; with another key each time it is called."""
        push, limit = (self.small, SMALL_BODY_BYTES) if is_small else (self.text, MAX_BODY_BYTES)
        return encrypt(push.text(self.msgid), self.subscription, limit)

    def headers(self, authorization: str, now_ms: int) -> list[tuple[str, str]]:
        """Return the request's headers in lower case. `authorization`: the app's VAPID header.

        The push service replaces a stored message of the same topic, so a repetition is delivered once.
        """
        return [
            ("authorization", authorization),
            ("ttl", str(min(max(self.expires_ms - now_ms, 0) // 1000, MAX_TTL_S))),
            ("urgency", self.urgency),
            ("topic", topic(self.msgid)),
            ("content-encoding", "aes128gcm"),
            ("content-type", "application/octet-stream"),
        ]


def topic(msgid: int) -> str:
    """Return the topic of a message, which is also the tag of its notification: at most 25 URL-safe characters."""
    return f"carillon-{msgid}"


def urgency(message: Message) -> Urgency:
    """A device that saves power gets what it shows at once, and what only its app uses when it wakes up."""
    return "high" if message.is_notif else "normal"


def web_push_text(message: Message, expires_ms: int, max_body_bytes: int = MAX_BODY_BYTES) -> WebPushText:
    """Return the frame of the push, shortened until it fits a body of this size with any message id."""
    limit = max_plaintext_bytes(max_body_bytes) - _ID_DIGITS
    fitting = shortened(push_fields(message, expires_ms), lambda fields: len(PushText(fields).text(0)) <= limit)
    return WebPushText(PushText(fitting), tuple(fitting.shortened or ()))


_ID_DIGITS = len(str(2**53))
