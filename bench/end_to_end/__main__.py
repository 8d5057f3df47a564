"""From an app server's request to the frame on the device: latency at a given rate, beside a floor.

    python -m bench.end_to_end --rate 300 --seconds 20 --devices 200

Starts `carillon up` on a directory of its own, connects virtual devices, sends signed single-token pushes evenly, and
takes the time from the first byte of each request to the push frame at the device. The floor is the same client against
a process that does nothing but pass the frame on: uvicorn for the request, picows for the device, no sign, no log.
"""

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect
from rich.console import Console
from rich.table import Table

from bench.end_to_end.requests import Requests
from bench.programs import connected
from testkit.installation.processes import Installation
from testkit.ports import free_ports
from testkit.signing import signed

PARTITIONS = 32


class Device(WSListener):
    """A device that notes the arrival of its pushes and acknowledges them."""

    def __init__(self, appkey: str, arrivals: dict[str, float]) -> None:
        self.token = ""
        self.welcomed = asyncio.get_running_loop().create_future()
        self._appkey = appkey
        self._arrivals = arrivals

    def on_ws_connected(self, transport: WSTransport) -> None:
        transport.send(WSMsgType.TEXT, json.dumps({"type": "hello", "appkey": self._appkey}).encode())

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type != WSMsgType.TEXT:
            return
        now = time.perf_counter()
        event = json.loads(frame.get_payload_as_bytes())
        if event["type"] == "welcome":
            self.token = event["token"]
            self.welcomed.set_result(None)
        elif event["type"] == "push":
            self._arrivals[event["content"]] = now
            transport.send(WSMsgType.TEXT, json.dumps({"type": "ack", "msgids": [event["msgid"]]}).encode())


def request_body(appkey: str, token: str, content: str) -> dict[str, Any]:
    return {
        "sendTo": {"appkey": {"android": appkey}, "userScope": 5, "token": {"android": token}},
        "msgStyle": {"basic": {"content": content, "is_notif": 1}, "android": {"title": "bench"}},
        "option": {"period": 600},
    }


async def measure(url: str, port: int, appkey: str, secret: str, options: argparse.Namespace) -> list[float]:
    """Return the milliseconds from request to frame of each push."""
    arrivals: dict[str, float] = {}
    devices = [Device(appkey, arrivals) for _ in range(options.devices)]
    for device in devices:
        await ws_connect(lambda device=device: device, url, use_aiofastnet=False)
        await device.welcomed
    requests = Requests(port)
    await requests.open()
    started: dict[str, float] = {}

    async def send(number: int) -> None:
        content = f"push {number}"
        body = signed(request_body(appkey, devices[number % len(devices)].token, content), secret)
        started[content] = time.perf_counter()
        answer = await requests.post("/v2/push", body)
        assert answer["result"] == 0, answer

    count = int(options.rate * options.seconds)
    first = time.perf_counter()
    tasks = []
    for number in range(count):
        await asyncio.sleep(max(0.0, first + number / options.rate - time.perf_counter()))
        tasks.append(asyncio.create_task(send(number)))
    await asyncio.gather(*tasks)
    async with asyncio.timeout(30):
        while len(arrivals) < count:
            await asyncio.sleep(0.05)
    return sorted((arrivals[content] - at) * 1000 for content, at in started.items())


def carillon(options: argparse.Namespace, data: Path) -> list[float]:
    with contextlib.closing(Installation(data, None)) as installation:
        installation.env |= {"CARILLON_PARTITIONS": str(PARTITIONS), "CARILLON_LOG_LEVEL": "WARNING"}
        installation.start()
        app = installation.create_app()
        port = int(installation.env["CARILLON_V2_PORT"])
        times_ms = uvloop.run(measure(installation.gateway_url, port, app.appkey, app.secret_key, options))
        installation.stop()
        return times_ms


def floor(options: argparse.Namespace) -> list[float]:
    http, ws = free_ports(2)
    process = subprocess.Popen([sys.executable, "-m", "bench.end_to_end.floor", str(http), str(ws)])
    try:
        connected(http).close()
        return uvloop.run(measure(f"ws://127.0.0.1:{ws}/", http, "1", "s", options))
    finally:
        process.terminate()
        process.wait()


def percentile(times_ms: list[float], part: float) -> float:
    return times_ms[min(len(times_ms) - 1, int(len(times_ms) * part))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=300, help="pushes a second")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as data:
        results = {"floor": floor(options), "carillon up": carillon(options, Path(data))}
    rows = {
        name: {
            "p50_ms": round(percentile(times, 0.5), 2),
            "p99_ms": round(percentile(times, 0.99), 2),
            "max_ms": round(times[-1], 2),
            "pushes": len(times),
        }
        for name, times in results.items()
    }
    if options.json:
        print(json.dumps({"rate": options.rate, "devices": options.devices, **rows}))
        return
    table = Table(title=f"request to frame, {options.rate:.0f} pushes/s, {options.devices} devices")
    for column in ("", "p50 ms", "p99 ms", "max ms", "pushes"):
        table.add_column(column, justify="right")
    for name, row in rows.items():
        table.add_row(name, *(str(value) for value in row.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
