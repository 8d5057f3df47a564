"""Cases of the fuzzer: what one of them sends, as it is generated, sent and stored in a finding."""

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from testkit.signing import reference_text

HTTP_PORTS = ("v2", "android", "ios")
PORTS = (*HTTP_PORTS, "console", "gateway")


class Call(msgspec.Struct, frozen=True, tag=True):
    """A call of an HTTP interface. `signers` are the appkeys whose secrets sign the body, unless `sign` is given.

    `by_socket`: over a socket to the listener; otherwise straight to the interface's ASGI application.
    """

    interface: str
    method: str
    path: str
    headers: list[tuple[bytes, bytes]]
    body: bytes
    signers: list[str]
    sign: str | None = None
    by_socket: bool = False


class Head(msgspec.Struct, frozen=True, tag=True):
    """Bytes sent to a listener's socket: a request head, or an upgrade to WebSocket, perhaps with a body."""

    port: str
    data: bytes


class WireFrames(msgspec.Struct, frozen=True, tag=True):
    """Bytes sent after the upgrade to WebSocket: after a hello (`welcomed`) or in place of it.

    `is_whole`: the bytes are complete frames, so that the gateway answers the frame that follows.
    """

    data: bytes
    welcomed: bool
    is_whole: bool


Payload = Call | Head | WireFrames


class Case(msgspec.Struct, frozen=True):
    """Case `number` of a seed; names of apps, tasks and messages are placeholders that `Names` replaces."""

    seed: int
    number: int
    payload: Payload


class Names:
    """Placeholders of what an installation chooses itself: appkeys, secrets, a task key, a message id."""

    def __init__(self, real: Mapping[str, str], secrets: Mapping[str, str]) -> None:
        self._real = [(placeholder.encode(), name.encode()) for placeholder, name in real.items()]
        self._secrets = secrets

    def put(self, data: bytes) -> bytes:
        """Return the data with the real names."""
        for placeholder, name in self._real:
            data = data.replace(placeholder, name)
        return data

    def taken(self, text: str) -> str:
        """Return the text with placeholders for the real names."""
        for placeholder, name in self._real:
            text = text.replace(name.decode(), placeholder.decode())
        return text

    def signed(self, call: Call) -> bytes:
        """Return the call's body with real names and its sign, where it is an object that can carry one."""
        body = self.put(call.body)
        if not body.startswith(b"{"):
            return body
        sign = call.sign if call.sign is not None else self._sign(body, call.signers)
        separator = b"" if body[1:2] == b"}" else b","
        return b'{"sign":"' + sign.encode() + b'"' + separator + body[1:]

    def _sign(self, body: bytes, signers: Sequence[str]) -> str:
        """Return the sign, or a wrong one for a body that no reader of JSON can sign."""
        try:
            text = reference_text(body).encode()
        except (ValueError, RecursionError, AttributeError):
            return "0" * 32
        return hashlib.md5(text + "".join(self._secrets[appkey] for appkey in signers).encode()).hexdigest()
