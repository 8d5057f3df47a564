"""The cases of the fuzzer: the requests or frames that one case sends, as they are generated and stored."""

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from edge.core.parsing.canonical import canonical_text

HTTP_PORTS = ("v2", "android", "ios")
PORTS = (*HTTP_PORTS, "operations", "gateway")


class Call(msgspec.Struct, frozen=True, tag=True):
    """A call of an HTTP interface. `signers` are the appkeys whose secrets sign the body, unless `sign` is given.

    `by_socket`: over a socket to the listener; otherwise straight to the interface's ASGI application.
    `times`: how often it is sent, at once. `pieces`: in how many the body arrives; more than one have no length
    announced. `leaves`: the client disconnects before the body is complete.
    """

    interface: str
    method: str
    path: str
    headers: list[tuple[bytes, bytes]]
    body: bytes
    signers: list[str]
    sign: str | None = None
    by_socket: bool = False
    times: int = 1
    pieces: int = 1
    leaves: bool = False


class Pipeline(msgspec.Struct, frozen=True, tag=True):
    """Calls of one interface that are written to one connection before any is answered.

    `leaves`: the client resets the connection as soon as it has written them.
    """

    interface: str
    calls: list[Call]
    leaves: bool = False


class Head(msgspec.Struct, frozen=True, tag=True):
    """Bytes sent to a listener's socket: a request head, or an upgrade to WebSocket, perhaps with a body."""

    port: str
    data: bytes


class WireFrames(msgspec.Struct, frozen=True, tag=True):
    """Bytes sent after the upgrade to WebSocket: after a hello (`welcomed`) or in place of it.

    `is_whole`: the bytes are complete frames, so that the gateway answers the frame that follows.
    `pieces`: in how many writes they are sent. `messages`: how many there are, each with mutations of its own.
    """

    data: bytes
    welcomed: bool
    is_whole: bool
    pieces: int = 1
    messages: int = 1


Payload = Call | Pipeline | Head | WireFrames


class Case(msgspec.Struct, frozen=True):
    """Case `number` of a seed; names of apps, tasks and messages are placeholders that `Names` replaces."""

    seed: int
    number: int
    payload: Payload


def size(payload: Payload) -> int:
    """Return how many bodies and frames the payload has that were mutated independently."""
    match payload:
        case Pipeline(calls=calls):
            return len(calls)
        case WireFrames(messages=messages):
            return messages
        case _:
            return 1


class Names:
    """Replaces placeholders by the values that an installation chooses: appkeys, secrets, a task key, a message id.

    `appkeys`: the real ones, first that of the Android app whose devices the fuzzer plays.
    """

    def __init__(self, real: Mapping[str, str], secrets: Mapping[str, str]) -> None:
        self.appkeys = [real[placeholder] for placeholder in secrets]
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
        """Return the sign by the service's own canonical text, which is ten times as fast as the reference's.

        A body of which there is none gets a wrong sign; the service refuses it before it looks at the sign.
        """
        try:
            text = canonical_text(body).encode()
        except Exception:
            return "0" * 32
        return hashlib.md5(text + "".join(self._secrets[appkey] for appkey in signers).encode()).hexdigest()


def pieces(data: bytes, count: int) -> list[bytes]:
    """Return the data in about `count` pieces of equal size; empty data in one."""
    size = max(1, -(-len(data) // count))
    return [data[place : place + size] for place in range(0, len(data), size)] or [b""]
