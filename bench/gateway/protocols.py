"""The wire formats of bench.gateway: WebSocket, MQTT and NATS, and a publisher for them."""

import contextlib
import socket
import ssl
import struct
import time

from bench.programs import connected
from services.net.rpc.tls import Tls

NATS_CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"lang":"c","version":"1","protocol":0}\r\n'


def upgraded(frame: bytes) -> bytes:
    """Return a WebSocket upgrade request followed by the first frame."""
    return (
        b"GET /device/v1 HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n" + frame
    )


def masked(payload: bytes) -> bytes:
    """Return a client's text frame, masked with zeros."""
    size = struct.pack("!B", 0x80 | len(payload)) if len(payload) < 126 else struct.pack("!BH", 0xFE, len(payload))
    return b"\x81" + size + bytes(4) + payload


def mqtt(kind: int, body: bytes) -> bytes:
    size = bytes([len(body)]) if len(body) < 128 else bytes([len(body) % 128 | 128, len(body) // 128])
    return bytes([kind]) + size + body


def mqtt_text(text: bytes) -> bytes:
    return struct.pack("!H", len(text)) + text


def mqtt_connect(client: str) -> bytes:
    return mqtt(0x10, mqtt_text(b"MQTT") + b"\x04\x02" + struct.pack("!H", 0) + mqtt_text(client.encode()))


def nats(head: bytes, text: bytes) -> bytes:
    return b"%s %d\r\n%s\r\n" % (head, len(text), text)


class Publisher:
    """A connection that publishes messages to a server."""

    def __init__(self, port: int, tls: Tls | None) -> None:
        self._socket = connected(port)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            context = ssl.create_default_context(cafile=tls.authority)
            self._socket = context.wrap_socket(self._socket, server_hostname="127.0.0.1")

    def send(self, packets: bytes) -> int:
        """Send packets; return when the sending began, in ns."""
        began = time.monotonic_ns()
        self._socket.sendall(packets)
        return began

    def exchange(self, packets: bytes, answer_bytes: int) -> None:
        """Send packets; return once so many bytes have been received."""
        self.send(packets)
        while answer_bytes > 0:
            answer_bytes -= len(self._received())

    def await_end(self, end: bytes) -> None:
        """Return once the received bytes end so."""
        while not self._received().endswith(end):
            pass

    def discard(self) -> None:
        """Discard received bytes that were not requested."""
        self._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            self._received()
        self._socket.setblocking(True)

    def close(self) -> None:
        self._socket.close()

    def _received(self) -> bytes:
        received = self._socket.recv(1 << 20)
        if not received:
            raise RuntimeError("the server closed the publisher's connection")
        return received
