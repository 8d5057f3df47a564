"""Generates the fuzzer's cases: valid requests and frames with mutations. The seed and the number determine a case."""

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from testkit.gateway.websocket import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, UPGRADE, close, frame
from tests.soak.fuzz.cases import HTTP_PORTS, PORTS, Call, Case, Head, Payload, WireFrames
from tests.soak.fuzz.values import Mutator, Object, Raw, Value, mutated_bytes, parsed, written


class Template(NamedTuple):
    """A valid call of an HTTP interface, with placeholders for names."""

    interface: str
    method: str
    path: str
    body: Object
    signers: tuple[str, ...]


_JSON = (b"content-type", b"application/json")
_HEADERS = (
    (b"content-type", b"text/plain"),
    (b"content-type", b"application/json; charset=utf-16"),
    (b"content-type", b"\xff"),
    (b"content-encoding", b"gzip"),
    (b"expect", b"100-continue"),
    (b"idempotency-key", b"key-1"),
    (b"idempotency-key", b""),
    (b"idempotency-key", b"k" * 300),
    (b"idempotency-key", b"\xe9\x00"),
    (b"x-forwarded-for", b"10.0.0.1, 256.1.1.1"),
    (b"x-forwarded-for", b"\xff" * 100),
    (b"x-request-id", b"a\x7fb"),
    (b"user-agent", b"\x80\xff"),
    (b"host", b"\xff:99999"),
    (b"cookie", b"; " * 500),
)
_PATHS = (
    "/",
    "/v2/pushes",
    "//v2/push",
    "/v2/push/",
    "/healthz",
    "/v2/%70ush",
    "/\u00e9",
    "/v2/push?x=%00",
    "/openapi.json",
)
_METHODS = ("GET", "HEAD", "PUT", "OPTIONS", "TRACE", "PATCH", "DELETE", "POST", "FOO")
_OPCODES = (CONTINUATION, TEXT, BINARY, 0x3, 0x7, CLOSE, PING, PONG, 0xB, 0xF)
_SIZES = (
    b"\x7e\x00\x01",
    b"\x7e\xff\xff",
    b"\x7f" + b"\xff" * 8,
    b"\x7f" + b"\x00" * 7 + b"\x05",
    b"\x7f\x00\x00\x00\x01" + b"\x00" * 4,
)
_HEAD_LINES = (
    *(
        b"Transfer-Encoding: chunked",
        b"Content-Length: 5",
        b"Content-Length: -1",
        b"Content-Length: 99999999999999999999",
    ),
    *(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"Upgrade: websocket", b"Expect: 100-continue"),
    *(b"Sec-WebSocket-Version: 99", b"Sec-WebSocket-Key: x", b"Sec-WebSocket-Extensions: permessage-deflate"),
    *(
        b"Sec-WebSocket-Protocol: " + b"a," * 2000,
        b" folded",
        b"NoColon",
        b": empty",
        b"Host: a\r\nHost: b",
        b"X: \xff\x00",
    ),
    *(b"X: " + b"y" * 20_000, b"\r\n".join(b"X%d: 1" % number for number in range(500))),
)


_MAX_BODY_BYTES = 2 * 1024 * 1024
"""Twice the largest body of an edge: a longer one is refused likewise, and its bytes cost the fuzzer's own time."""


class Generator:
    """Makes the cases of one seed from valid calls and from valid frames of a welcomed device and of one to be."""

    def __init__(
        self, seed: int, calls: Sequence[Template], frames: Sequence[Object], hellos: Sequence[Object]
    ) -> None:
        self.seed = seed
        self._calls = calls
        self._frames = frames
        self._hellos = hellos
        self._bodies: list[Value] = [call.body for call in calls]

    def case(self, number: int) -> Case:
        random = Random(f"{self.seed}/{number}")
        kind = random.random()
        payload: Payload
        if kind < 0.75:
            payload = self._call(random)
        elif kind < 0.80:
            payload = self._head(random)
        else:
            payload = self._wire_frames(random)
        return Case(self.seed, number, payload)

    def _call(self, random: Random) -> Call:
        template = random.choice(self._calls)
        headers, sign = [_JSON], None
        method, path, interface, signers = template.method, template.path, template.interface, list(template.signers)
        body = self._body(random, template.body, self._bodies)
        if random.random() < 0.05:
            headers = random.choice(([], [_JSON])) + random.sample(_HEADERS, random.choice((1, 1, 2, 6)))
        if random.random() < 0.02:
            method, path = random.choice((_METHODS, (method,))), path  # type: ignore[assignment]
            method = random.choice(method)
        if random.random() < 0.02:
            path = random.choice(_PATHS)
        if random.random() < 0.02:
            interface = random.choice(HTTP_PORTS)
        if random.random() < 0.02:
            sign = random.choice(("", "0" * 32, "é" * 16, "0" * 10_000))
        if random.random() < 0.01:
            random.shuffle(signers)
        return Call(interface, method, path, headers, body, signers, sign, by_socket=random.random() < 0.05)

    def _body(self, random: Random, valid: Object, pool: Sequence[Value]) -> bytes:
        """Return JSON of a mutated value; one in five is mutated as bytes too. What is longer than the bound is cut."""
        mutator = Mutator(random, pool)
        kind = random.random()
        value = valid if kind < 0.02 else mutator.mutated(valid)
        data = written(value).encode(errors="surrogatepass")
        return (mutated_bytes(random, data) if kind > 0.8 else data)[:_MAX_BODY_BYTES]

    def _head(self, random: Random) -> Head:
        port = random.choice(PORTS)
        template = random.choice(self._calls)
        if port == "gateway" and random.random() < 0.8:
            data = UPGRADE
        else:
            body = written(template.body).encode()
            path = template.path if port in HTTP_PORTS else random.choice(("/healthz", "/metrics"))
            line = f"{template.method if port in HTTP_PORTS else 'GET'} {path} HTTP/1.1\r\nHost: a\r\n".encode()
            data = line + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        change = random.random()
        if change < 0.5:
            lines = data.split(b"\r\n")
            lines.insert(random.randrange(1, 4), random.choice(_HEAD_LINES))
            data = b"\r\n".join(lines)
        if change > 0.3:
            data = mutated_bytes(random, data)
        return Head(port, data)

    def _wire_frames(self, random: Random) -> WireFrames:
        welcomed = random.random() < 0.85
        valid = random.choice(self._frames if welcomed else self._hellos)
        payload = self._body(random, valid, [*self._frames, *self._hellos])
        if random.random() < 0.8:
            return WireFrames(frame(TEXT, payload), welcomed, is_whole=True)
        return WireFrames(self._wire(random, payload), welcomed, is_whole=False)

    def _wire(self, random: Random, payload: bytes) -> bytes:
        """Return frames that bend the protocol of WebSocket."""
        change = random.randrange(7)
        data: bytes
        if change == 0:
            cut = random.randrange(len(payload) + 1)
            data = frame(TEXT, payload[:cut], fin=False) + frame(CONTINUATION, payload[cut:])
        elif change == 1:
            data = frame(random.choice(_OPCODES), payload, fin=random.random() < 0.7, rsv=random.choice((0, 0, 4, 7)))
        elif change == 2:
            data = frame(TEXT, payload, masked=False)
        elif change == 3:
            data = frame(TEXT, payload, size=random.choice(_SIZES))
        elif change == 4:
            data = close(random.randrange(65536), random.choice((b"", b"\xff", b"bye", b"x" * 123)))
        elif change == 5:
            data = b"".join(
                frame(PING, random.randbytes(random.choice((0, 125, 126)))) for _ in range(random.choice((1, 30)))
            )
        else:
            data = mutated_bytes(random, frame(TEXT, payload))
        return data if random.random() < 0.7 else data * 3


def device_frames(msgid: int) -> list[Object]:
    """Return a valid frame of every kind that a welcomed device sends."""
    device = Object([("brand", "b"), ("region", "北京市"), ("os_version", "14")])
    made: list[dict[str, Any]] = [
        {"type": "ack", "msgids": [msgid, 5]},
        {"type": "report", "event": "shown", "msgid": msgid},
        {"type": "activity", "event": "open"},
        {"type": "ping"},
        {"type": "set_alias", "id": 1, "alias": "alice"},
        {"type": "clear_alias", "id": 2},
        {"type": "add_tags", "id": 3, "tags": [1, 2]},
        {"type": "remove_tags", "id": 4, "tags": [1]},
        {"type": "add_stags", "id": 5, "stags": ["a", "é"]},
        {"type": "remove_stags", "id": 6, "stags": ["a"]},
        {"type": "set_attributes", "id": 7, "device": device},
        {"type": "get_device", "id": 8},
    ]
    return [Object(fields.items()) for fields in made]


def hello_frames(appkey: str, token: str, key: str) -> list[Object]:
    """Return valid first frames: of a new device, and of a known one."""
    device = Object([("brand", "b"), ("app_version", "1.0")])
    return [
        Object([("type", "hello"), ("appkey", appkey), ("device", device), ("heartbeat", 60)]),
        Object([("type", "hello"), ("appkey", Raw(appkey)), ("token", token), ("key", key), ("device", device)]),
    ]


def template(interface: str, method: str, path: str, body: str, signers: tuple[str, ...]) -> Template:
    return Template(interface, method, path, parsed(body), signers)
