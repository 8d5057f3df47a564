"""What the gateway costs: fan-out, unicast with acknowledgement, memory; beside a C floor and mosquitto.

    python -m bench.gateway --connections 2000 --rounds 20 --json

One server process and one client process, on a core each where there are two. The clients are the same C program
for all servers: they count bytes. The floor (bench/floor.c) writes one frame a socket and knows no protocol.
mosquitto runs as Debian ships it, and again with allow_duplicate_messages; without it its lines are left out.
"""

import argparse
import json
import os
import resource
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from bench.gateway_alone import APPKEY, EXPIRES_MS, FIRST_MSGID, MASTER, MESSAGE
from services.gateway.frames import HEADROOM, PushFrames
from services.runtime.keys import Keyring

FRAME = PushFrames(MESSAGE, EXPIRES_MS).frame(FIRST_MSGID)[HEADROOM:]
WIRE_BYTES = len(FRAME) + (2 if len(FRAME) < 126 else 4)
TOPIC = b"t"
_CORES = sorted(os.sched_getaffinity(0))


class Program:
    """A child that is told lines and answers each with one."""

    def __init__(self, command: Sequence[str], core: int, quiet: bool = False) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
            text=True,
            bufsize=1,
        )
        os.sched_setaffinity(self.process.pid, {_CORES[core % len(_CORES)]})

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")

    def hear(self) -> list[str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args!r} ended")
        return line.split()

    def ask(self, line: str) -> list[str]:
        self.tell(line)
        return self.hear()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Bench:
    """Programs, records and measures of one run."""

    def __init__(self, directory: Path, connections: int, rounds: int) -> None:
        self.directory = directory
        self.connections = connections
        self.rounds = rounds
        self.floor = str(directory / "floor")
        source = Path(__file__).with_name("floor.c")
        subprocess.run(["gcc", "-O2", "-o", self.floor, str(source)], check=True)

    @contextmanager
    def clients(self, port: int, records: Iterator[bytes]) -> Iterator[Program]:
        path = self.directory / "records"
        path.write_bytes(b"".join(struct.pack("=I", len(record)) + record for record in records))
        program = Program([self.floor, "clients", str(port), str(self.connections), str(path)], core=1)
        try:
            if program.hear() != ["connected"]:
                raise RuntimeError("the clients did not connect")
            program.ask("quiet")
            yield program
        finally:
            program.close()

    def fan_out(self, clients: Program, frame_bytes: int, broadcast: Callable[[], int]) -> float:
        """Frames a second: the median of the rounds, each from the order to the last byte at the last client."""
        rates = []
        for _ in range(self.rounds):
            clients.tell(f"count {frame_bytes * self.connections}")
            began = broadcast()
            rates.append(self.connections / (int(clients.hear()[0]) - began) * 1e9)
        return statistics.median(rates)

    def unicast(self, clients: Program, ack: bytes, command: str, server: Program) -> float:
        """Messages that were sent and acknowledged, a second."""
        clients.tell(f"answer {WIRE_BYTES} {self.connections * self.rounds} {ack.hex()}")
        began, ended = map(int, server.ask(command))
        clients.hear()
        return self.connections * self.rounds / (ended - began) * 1e9

    def measure_floor(self) -> dict[str, float]:
        server = Program([self.floor, "serve"], core=0)
        try:
            with self.clients(int(server.hear()[0]), (b"" for _ in range(self.connections))) as clients:
                fan_out = self.fan_out(clients, WIRE_BYTES, lambda: int(server.ask(f"broadcast {WIRE_BYTES}")[0]))
                ack = _masked(_ack())
                unicast = self.unicast(clients, ack, f"unicast {WIRE_BYTES} {len(ack)} {self.rounds}", server)
                return {"broadcast": fan_out, "unicast": unicast}
        finally:
            server.close()

    def measure_gateway(self) -> dict[str, float]:
        directory = self.directory / "gateway"
        directory.mkdir()
        server = Program([sys.executable, "-m", "bench.gateway_alone", str(directory)], core=0)
        try:
            port = int(server.hear()[0])
            empty = int(server.ask("memory")[0])
            with self.clients(port, _devices(self.connections)) as clients:
                while int(server.ask("connections")[0]) < self.connections:
                    time.sleep(0.1)
                clients.ask("quiet")
                idle = (int(server.ask("memory")[0]) - empty) / self.connections
                fan_out = self.fan_out(clients, WIRE_BYTES, lambda: int(server.ask("broadcast")[0]))
                unicast = self.unicast(clients, _masked(_ack()), f"unicast {self.rounds}", server)
                return {"broadcast": fan_out, "unicast": unicast, "bytes_per_connection": idle}
        finally:
            server.close()

    def measure_mosquitto(self, *options: str) -> dict[str, float]:
        port = _free_port()
        config = self.directory / "mosquitto.conf"
        config.write_text("\n".join([f"listener {port} 127.0.0.1", "allow_anonymous true", *options, ""]))
        server = Program([_mosquitto() or "", "-c", str(config)], core=0, quiet=True)
        try:
            publisher = _connected(port)
            publisher.sendall(_mqtt_connect("publisher"))
            publisher.recv(4)
            empty = psutil.Process(server.process.pid).memory_info().rss
            packet = _mqtt_publish(bytes(FRAME))

            def broadcast() -> int:
                began = time.monotonic_ns()
                publisher.sendall(packet)
                return began

            with self.clients(port, _subscribers(self.connections)) as clients:
                idle = (psutil.Process(server.process.pid).memory_info().rss - empty) / self.connections
                fan_out = self.fan_out(clients, len(packet), broadcast)
            publisher.close()
            return {"broadcast": fan_out, "bytes_per_connection": idle}
        finally:
            server.process.terminate()
            server.close()


def _masked(payload: bytes) -> bytes:
    """A client's text frame; the mask is zero."""
    size = struct.pack("!B", 0x80 | len(payload)) if len(payload) < 126 else struct.pack("!BH", 0xFE, len(payload))
    return b"\x81" + size + bytes(4) + payload


def _ack() -> bytes:
    return json.dumps({"type": "ack", "msgids": [FIRST_MSGID]}).encode()


def _devices(count: int) -> Iterator[bytes]:
    """For each device its upgrade request and hello, with a key that proves its number."""
    keys = Keyring(MASTER)
    upgrade = (
        b"GET /device/v1 HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    for number in range(count):
        token = f"{number:032x}"
        hello = {"type": "hello", "appkey": APPKEY, "token": token, "key": keys.device_key(APPKEY, token, number)}
        yield upgrade + _masked(json.dumps(hello).encode())


def _mqtt(kind: int, body: bytes) -> bytes:
    size = bytes([len(body)]) if len(body) < 128 else bytes([len(body) % 128 | 128, len(body) // 128])
    return bytes([kind]) + size + body


def _mqtt_text(text: bytes) -> bytes:
    return struct.pack("!H", len(text)) + text


def _mqtt_connect(client: str) -> bytes:
    return _mqtt(0x10, _mqtt_text(b"MQTT") + b"\x04\x02" + struct.pack("!H", 0) + _mqtt_text(client.encode()))


def _mqtt_publish(payload: bytes) -> bytes:
    return _mqtt(0x30, _mqtt_text(TOPIC) + payload)


def _subscribers(count: int) -> Iterator[bytes]:
    subscribe = _mqtt(0x82, struct.pack("!H", 1) + _mqtt_text(TOPIC) + b"\x00")
    for number in range(count):
        yield _mqtt_connect(f"c{number}") + subscribe


def _mosquitto() -> str | None:
    return shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _connected(port: int) -> socket.socket:
    for _ in range(100):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise RuntimeError("mosquitto does not listen")


def _check_files(connections: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if connections + 100 > hard:
        raise SystemExit(f"{connections} connections need more open files than this host allows ({hard}, `ulimit -Hn`)")


def _print(results: Mapping[str, Mapping[str, float]], frame_bytes: int) -> None:
    floor = results["C floor"]
    table = Table(title=f"gateway: frames of {frame_bytes} bytes; ratios to the floor of the same run")
    for column in ("server", "broadcast frames/s", "ratio", "unicast + ack /s", "ratio", "KB per idle connection"):
        table.add_column(column, justify="left" if column == "server" else "right")
    for name, result in results.items():
        cells = [name]
        for measure in ("broadcast", "unicast"):
            value = result.get(measure)
            cells += [f"{value:,.0f}", f"{value / floor[measure]:.2f}"] if value else ["", ""]
        memory = result.get("bytes_per_connection")
        table.add_row(*cells, f"{memory / 1000:.1f}" if memory else "")
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    asked = parser.parse_args()
    _check_files(asked.connections)
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(Path(directory), asked.connections, asked.rounds)
        results: dict[str, dict[str, Any]] = {"C floor": bench.measure_floor(), "gateway": bench.measure_gateway()}
        if _mosquitto():
            results["mosquitto"] = bench.measure_mosquitto()
            results["mosquitto, duplicates"] = bench.measure_mosquitto("allow_duplicate_messages true")
        else:
            print("mosquitto is not installed (apt-get install mosquitto): its lines are left out", file=sys.stderr)
    if asked.json:
        print(json.dumps({"connections": asked.connections, "rounds": asked.rounds, "servers": results}))
    else:
        _print(results, WIRE_BYTES)


if __name__ == "__main__":
    main()
