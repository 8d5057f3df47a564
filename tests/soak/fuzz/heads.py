"""Makes mutated request heads, with bodies whose framing may be wrong."""

from random import Random

from testkit.gateway.websocket import UPGRADE
from tests.soak.fuzz.cases import HTTP_PORTS, PORTS, Head, pieces
from tests.soak.fuzz.values import mutated_bytes

_LINES = (
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
    *(b"X-Forwarded-For: 10.0.0.1", b"X-Forwarded-For: \xff, [::1]:99999", b"X-Forwarded-For: " + b"::," * 2000),
)
_FIRST_LINES = (
    *(b"OPTIONS * HTTP/1.1", b"CONNECT a:1 HTTP/1.1", b"PRI * HTTP/2.0\r\n\r\nSM\r\n", b"post /push HTTP/1.1"),
    *(b"POST http://a:1/v2/push HTTP/1.1", b"POST /v2/../push HTTP/1.0", b"POST /\xff%zz?\x80 HTTP/1.1", b"GET /"),
    *(b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\r\n" * 100),
    *(b"POST /" + b"a" * 60_000 + b" HTTP/1.1", b"POST /push HTTP/1.1 HTTP/1.1", b"POST\t/push\tHTTP/1.1"),
)
_CHUNK_STARTS = (b"%x", b"%x;name=value", b"%X ", b"0%x", b"-%x", b"0x%x", b"%x" + b"0" * 20, b"%x;" + b"e" * 2000)
_ENDS = (
    b"0\r\n\r\n",
    b"0\r\nTrailer: 1\r\n\r\n",
    b"0\r\n" + b"T: 1\r\n" * 500 + b"\r\n",
    b"0\n\n",
    b"",
    b"0\r\n\r\nPOST /",
)


def mutated_head(random: Random, method: str, path: str, body: bytes) -> Head:
    """Return a request with this body, or an upgrade of the gateway, whose bytes are changed."""
    port = random.choice(PORTS)
    if port == "gateway" and random.random() < 0.8:
        data = UPGRADE
    else:
        path = path if port in HTTP_PORTS else random.choice(("/healthz", "/metrics"))
        line = f"{method if port in HTTP_PORTS else 'GET'} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n".encode()
        data = line + (_chunked(random, body) if random.random() < 0.3 else _announced(body))
    change = random.random()
    if change < 0.5:
        lines = data.split(b"\r\n")
        lines.insert(random.randrange(1, 4), random.choice(_LINES))
        if random.random() < 0.3:
            lines[0] = random.choice(_FIRST_LINES)
        data = b"\r\n".join(lines)
    if change > 0.3:
        data = mutated_bytes(random, data)
    return Head(port, data)


def _announced(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


def _chunked(random: Random, body: bytes) -> bytes:
    """Return a body in chunks, perhaps many small ones, whose sizes may be written in a way that is not allowed."""
    start = random.choice(_CHUNK_STARTS) if random.random() < 0.5 else b"%x"
    parts = pieces(body, random.choice((1, 3, 100, len(body))))
    chunks = b"".join(start % len(part) + b"\r\n" + part + b"\r\n" for part in parts)
    return b"Transfer-Encoding: chunked\r\n\r\n" + chunks + random.choice(_ENDS)
