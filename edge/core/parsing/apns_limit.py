"""The size limit of APNs payloads, checked before a push is accepted."""

from collections.abc import Mapping

from protos.push.v1.push_pb2 import Message
from services.domain.apns.payload import MAX_PAYLOAD_BYTES, max_size_bytes
from services.runtime.errors import InputError


def check_payload(message: Message, names: Mapping[str, str]) -> None:
    """Check that APNs accepts the payload's size. InputError: too large; the text names its longest field.

    `names`: the request's names of content, extra, sound and category.
    """
    size = max_size_bytes(message)
    if size > MAX_PAYLOAD_BYTES:
        texts = {"content": message.content, "extra": message.extra}
        if message.is_notif:
            texts |= {"sound": message.ios.sound, "category": message.ios.category}
        longest = max(texts, key=lambda name: len(texts[name].encode()))
        raise InputError(
            f"{names[longest]} is too long: it makes {size} bytes for iOS devices, of which Apple takes at most"
            f" {MAX_PAYLOAD_BYTES}"
        )
