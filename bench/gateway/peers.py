"""The servers that bench.gateway measures, each with its protocol: the C floor, the gateway, mosquitto, NATS."""

import getpass
import json
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from bench.gateway.process import APPKEY, EXPIRES_MS, FIRST_MSGID, MASTER, MESSAGE
from bench.gateway.protocols import NATS_CONNECT, Publisher, masked, mqtt, mqtt_connect, mqtt_text, nats, upgraded
from bench.programs import Built, Program
from services.domain.master_key import MasterKey
from services.gateway.push_frames import PushFrames
from services.net.rpc.tls import Tls
from testkit.ports import free_ports

TEXT = PushFrames(MESSAGE, EXPIRES_MS).text(FIRST_MSGID)
FRAME_BYTES = len(TEXT) + 4
_SETTLE_MS = 300


class Peer(Protocol):
    """A running server that is measured. A client sends `hello(number)` first; `marker` in the answer accepts it.

    `settle_ms`: once nothing has been received for so long, all clients are idle.
    """

    program: Program
    port: int
    marker: bytes
    frame_bytes: int
    settle_ms: int

    def hello(self, number: int) -> bytes: ...

    def resident_bytes(self) -> int: ...

    def await_connections(self, count: int) -> None:
        """Return once the server itself has processed that many hellos."""
        ...

    def broadcast(self, count: int = 1) -> int:
        """Send messages to all clients, one after the other; return when the sending began, in ns."""
        ...

    def unicast(self, clients: Program, count: int) -> int:
        """Send each client a message of its own; return the ns until all are acknowledged."""
        ...

    def close(self) -> None: ...


class Floor:
    """The C floor, which knows no protocol; it computes for `compute_ns` before each frame of a broadcast."""

    marker = b"welcome"
    frame_bytes = FRAME_BYTES
    settle_ms = _SETTLE_MS

    def __init__(self, built: Built, tls: Tls | None = None, compute_ns: int = 0) -> None:
        self._compute_ns = compute_ns
        self.program = Program([built.path("floor"), *([str(tls.certificate), str(tls.key)] if tls else [])], core=0)
        self.port = self.program.receive()[0]

    def hello(self, number: int) -> bytes:
        return b"hello"

    def resident_bytes(self) -> int:
        return self.program.resident_bytes()

    def await_connections(self, count: int) -> None:
        """Return at once: the floor does all its work before it sends a welcome."""

    def broadcast(self, count: int = 1) -> int:
        return self.program.request(f"broadcast {FRAME_BYTES} {count} {self._compute_ns}")[0]

    def unicast(self, clients: Program, count: int) -> int:
        ack = masked(json.dumps({"type": "ack", "msgids": [FIRST_MSGID]}).encode())
        clients.send(f"answer {count} {FRAME_BYTES} {ack.hex()}")
        began, ended = self.program.request(f"unicast {FRAME_BYTES} {len(ack)}")
        clients.receive()
        return ended - began

    def close(self) -> None:
        self.program.close()


class Gateway:
    """The gateway. `delivery`: "script" for pushes by the benchmark's command, "real" for the role in its process."""

    marker = b'"type":"welcome"'
    frame_bytes = FRAME_BYTES
    settle_ms = _SETTLE_MS

    def __init__(self, directory: Path, delivery: str, tls: Tls | None = None) -> None:
        env = {
            "CARILLON_GATEWAY_TLS_CERT": str(tls.certificate) if tls else "",
            "CARILLON_GATEWAY_TLS_KEY": str(tls.key) if tls else "",
        }
        self.program = Program([sys.executable, "-m", "bench.gateway.process", str(directory), delivery], 0, env)
        self.port = self.program.receive()[0]
        self._keys = MasterKey(MASTER)

    def hello(self, number: int) -> bytes:
        """Return the upgrade request and hello, with the device key that proves the device number."""
        token = f"{number:032x}"
        key = self._keys.device_key(APPKEY, token, number)
        return upgraded(masked(json.dumps({"type": "hello", "appkey": APPKEY, "token": token, "key": key}).encode()))

    def resident_bytes(self) -> int:
        self.program.request("collect")
        return self.program.resident_bytes()

    def await_connections(self, count: int) -> None:
        while self.program.request("connections")[0] < count:
            time.sleep(0.05)

    def broadcast(self, count: int = 1) -> int:
        return self.program.request(f"broadcast {count}")[0]

    def unicast(self, clients: Program, count: int) -> int:
        clients.send(f"acknowledge {count}")
        began, ended = self.program.request("unicast")
        clients.receive()
        return ended - began

    def close(self) -> None:
        self.program.close()


class Mosquitto:
    """mosquitto with its default configuration plus `options`."""

    marker = b"\x90\x04\x00\x01\x00\x01"
    settle_ms = _SETTLE_MS

    def __init__(self, command: str, directory: Path, tls: Tls | None = None, *options: str) -> None:
        self.port = free_ports(1)[0]
        files = [f"certfile {tls.certificate}", f"keyfile {tls.key}"] if tls else []
        lines = [
            f"user {getpass.getuser()}",
            f"listener {self.port} 127.0.0.1",
            "allow_anonymous true",
            *files,
            *options,
        ]
        config = directory / "mosquitto.conf"
        config.write_text("\n".join([*lines, ""]))
        self.program = Program([command, "-c", str(config)], core=0, quiet=True)
        self._publisher = Publisher(self.port, tls)
        self._publisher.exchange(mqtt_connect("publisher"), 4)
        self._broadcast = mqtt(0x30, mqtt_text(b"t") + TEXT)
        self.frame_bytes = len(self._broadcast)

    def hello(self, number: int) -> bytes:
        topics = mqtt_text(b"t") + b"\x00" + mqtt_text(b"u%05d" % number) + b"\x01"
        return mqtt_connect(f"c{number}") + mqtt(0x82, struct.pack("!H", 1) + topics)

    def resident_bytes(self) -> int:
        return self.program.resident_bytes()

    def await_connections(self, count: int) -> None:
        """Return at once: the acknowledgement of a subscription is the last step."""

    def broadcast(self, count: int = 1) -> int:
        return self._publisher.send(self._broadcast * count)

    def unicast(self, clients: Program, count: int) -> int:
        """Send with quality of service 1: each client acknowledges its message by packet id."""
        packets = [
            mqtt(0x32, mqtt_text(b"u%05d" % number) + struct.pack("!H", number % 65535 + 1) + TEXT)
            for number in range(count)
        ]
        at = packets[0].index(b"u00000") + 6
        clients.send(f"answer {count} {len(packets[0])} 40020000 {at} 2")
        began = time.monotonic_ns()
        self._publisher.exchange(b"".join(packets), 4 * count)
        return clients.receive()[0] - began

    def close(self) -> None:
        self._publisher.close()
        self.program.close()


class Nats:
    """nats-server with its default configuration, on one core."""

    marker = b"PONG\r\n"
    settle_ms = 2500
    """NATS pings each client, the publisher too, once about two seconds after it connected."""

    def __init__(self, command: str, directory: Path, tls: Tls | None = None) -> None:
        self.port = free_ports(1)[0]
        files = f'cert_file: "{tls.certificate}", key_file: "{tls.key}"' if tls else ""
        secured = f"tls {{ {files}, handshake_first: true }}\n" if tls else ""
        config = directory / "nats.conf"
        config.write_text(f'listen: "127.0.0.1:{self.port}"\nping_interval: "1h"\n{secured}')
        self.program = Program([command, "-c", str(config)], 0, {"GOMAXPROCS": "1"}, quiet=True)
        self._publisher = Publisher(self.port, tls)
        self._publisher.send(NATS_CONNECT + b"SUB a 9\r\nPING\r\n")
        self._publisher.await_end(self.marker)
        self.frame_bytes = len(nats(b"MSG t 1", TEXT))

    def hello(self, number: int) -> bytes:
        return NATS_CONNECT + b"SUB t 1\r\nSUB u%05d 2\r\nPING\r\n" % number

    def resident_bytes(self) -> int:
        return self.program.resident_bytes()

    def await_connections(self, count: int) -> None:
        """Return at once: a client is welcome when its subscriptions are in force."""

    def broadcast(self, count: int = 1) -> int:
        return self._publisher.send(nats(b"PUB t", TEXT) * count)

    def unicast(self, clients: Program, count: int) -> int:
        """Send with a reply subject, which is the publisher's, for the acknowledgement."""
        packets = b"".join(nats(b"PUB u%05d a" % number, TEXT) for number in range(count))
        self._publisher.discard()
        clients.send(f"answer {count} {len(nats(b'MSG u00000 2 a', TEXT))} {b'PUB a 0'.hex()}0d0a0d0a")
        began = time.monotonic_ns()
        self._publisher.exchange(packets, len(b"MSG a 9 0\r\n\r\n") * count)
        ended = time.monotonic_ns()
        clients.receive()
        return ended - began

    def close(self) -> None:
        self._publisher.close()
        self.program.close()


Start = Callable[[Tls | None], Peer]
