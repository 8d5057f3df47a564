"""Benchmark of latency: from an app server's request to the frame on the device, at a given rate, beside a floor.

    python -m bench.end_to_end --rate 300 --seconds 20 --devices 200

Starts `carillon up` on a directory of its own, connects virtual devices, sends signed single-token pushes evenly, and
takes the time from the first byte of each request to the push frame at the device. The floor is the same client against
a process that does nothing but pass the frame on: uvicorn for the request, picows for the device, no sign, no log.
While the floor is measured, another process makes durable writes, as often as the log commits.

With `--webhook` there is a further run in which a webhook of the app gets each of its events, and its receiver takes
them all: what it costs a push that other systems are told of it.

The first table also has the 99th percentile of the worst second, the number of seconds in which it exceeds 60 ms, and
the CPU time of all processes of the service, with what they do after the frame: acknowledgements, outcomes, statistics.
The second table has that CPU time by process and thread; the third has where the time of a push goes, stage by
stage, over the whole run and in its worst second.
"""

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import uvloop
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect
from rich.console import Console
from rich.table import Table

from bench.end_to_end.measured import Measured, Push, cpu_times_s
from bench.end_to_end.requests import Requests
from bench.end_to_end.stages import stage_rows
from bench.programs import Program, connected
from testkit.installation.processes import UNLIMITED_REGISTRATIONS, Installation
from testkit.ports import free_ports
from testkit.signing import signed

PARTITIONS = 32
CpuTimes = Callable[[], Mapping[str, float]]


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
        now_s = time.monotonic()
        event = json.loads(frame.get_payload_as_bytes())
        if event["type"] == "welcome":
            self.token = event["token"]
            self.welcomed.set_result(None)
        elif event["type"] == "push":
            self._arrivals[event["content"]] = now_s
            transport.send(WSMsgType.TEXT, json.dumps({"type": "ack", "msgids": [event["msgid"]]}).encode())


def request_body(appkey: str, token: str, content: str) -> dict[str, Any]:
    return {
        "sendTo": {"appkey": {"android": appkey}, "userScope": 5, "token": {"android": token}},
        "msgStyle": {"basic": {"content": content, "is_notif": 1}, "android": {"title": "bench"}},
        "option": {"period": 600},
    }


async def measure(
    url: str, port: int, appkey: str, secret: str, options: argparse.Namespace, cpu_times: CpuTimes
) -> Measured:
    """Send the pushes and wait for their frames."""
    arrivals: dict[str, float] = {}
    devices = [Device(appkey, arrivals) for _ in range(options.devices)]
    for device in devices:
        await ws_connect(lambda device=device: device, url, use_aiofastnet=False)
        await device.welcomed
    requests = Requests(port)
    await requests.open()
    sent: dict[str, tuple[int, float]] = {}

    async def send(number: int) -> None:
        content = f"push {number}"
        body = signed(request_body(appkey, devices[number % len(devices)].token, content), secret)
        started_s = time.monotonic()
        answer = await requests.post("/v2/push", body)
        assert answer["result"] == 0, answer
        sent[content] = answer["id"], started_s

    count = int(options.rate * options.seconds)
    first = time.perf_counter()
    cpu_before = cpu_times()
    tasks = []
    for number in range(count):
        await asyncio.sleep(max(0.0, first + number / options.rate - time.perf_counter()))
        tasks.append(asyncio.create_task(send(number)))
    await asyncio.gather(*tasks)
    async with asyncio.timeout(30):
        while len(arrivals) < count:
            await asyncio.sleep(0.05)
    cpu_s = {name: seconds - cpu_before.get(name, 0.0) for name, seconds in cpu_times().items()}
    return Measured([Push(msgid, at_s, arrivals[content]) for content, (msgid, at_s) in sent.items()], cpu_s)


def carillon(
    options: argparse.Namespace, data: Path, settings: Mapping[str, str] | None = None, receiver_port: int | None = None
) -> tuple[Measured, dict[str, dict[str, float]]]:
    """Measure `carillon up` with these settings; return the result and a row for each stage.

    `receiver_port`: where the receiver of a webhook of the app listens; None: the app has no webhook.
    """
    stages = data / "stages"
    receiver = f"127.0.0.1:{receiver_port}"
    with contextlib.closing(Installation(data / "carillon", None)) as installation:
        installation.env |= {
            "CARILLON_PARTITIONS": str(PARTITIONS),
            "CARILLON_LOG_LEVEL": "WARNING",
            **UNLIMITED_REGISTRATIONS,
        }
        installation.env |= settings or {}
        if receiver_port is not None:
            installation.env["CARILLON_WEBHOOK_HOSTS"] = receiver
        if not options.no_stages:
            installation.env["CARILLON_STAGES_DIR"] = str(stages)
        installation.start()
        app = installation.create_app()
        if receiver_port is not None:
            installation.carillon("webhook", "add", app.appkey, f"http://{receiver}/")
        port = int(installation.env["CARILLON_V2_PORT"])
        process = psutil.Process(installation.process_id())
        cpu_times = lambda: cpu_times_s(process, "carillon up")  # noqa: E731
        run = measure(installation.gateway_url, port, app.appkey, app.secret_key, options, cpu_times)
        measured = uvloop.run(run)
        installation.stop()
    return measured, {} if options.no_stages else stage_rows(stages, measured)


def beside_a_webhook(options: argparse.Namespace) -> Measured:
    """Measure `carillon up` while a webhook gets each event of the app. RuntimeError: the receiver got none."""
    (port,) = free_ports(1)
    receiver = Program([sys.executable, "-m", "bench.webhooks.receiver", str(port)], core=None)
    receiver.receive()
    try:
        with tempfile.TemporaryDirectory() as data:
            measured, _ = carillon(options, Path(data), receiver_port=port)
        if not receiver.request("count")[0]:
            raise RuntimeError("the receiver of the webhook got no event")
        return measured
    finally:
        receiver.process.kill()
        receiver.process.wait()


def floor(options: argparse.Namespace) -> tuple[Measured, dict[str, float]]:
    """Measure the floor, and durable writes to the disk at the same time; the floor itself writes nothing."""
    http, ws = free_ports(2)
    disk = [sys.executable, "-m", "bench.end_to_end.disk", tempfile.gettempdir(), str(options.seconds)]
    writes = subprocess.Popen(disk, stdout=subprocess.PIPE)
    process = subprocess.Popen([sys.executable, "-m", "bench.end_to_end.floor", str(http), str(ws)])
    try:
        connected(http).close()
        cpu_times = lambda: cpu_times_s(psutil.Process(process.pid), "floor")  # noqa: E731
        measured = uvloop.run(measure(f"ws://127.0.0.1:{ws}/", http, "1", "s", options, cpu_times))
        return measured, json.loads(writes.communicate()[0])
    finally:
        for each in (process, writes):
            each.terminate()
            each.wait()


def print_table(title: str, rows: Mapping[str, Mapping[str, float]]) -> None:
    table = Table(title=title)
    table.add_column("")
    for column in next(iter(rows.values())):
        table.add_column(column.replace("_", " "), justify="right")
    for name, row in rows.items():
        table.add_row(name, *(str(value) for value in row.values()))
    Console(width=130).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=300, help="pushes a second")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--no-stages", action="store_true", help="do not measure the stages, which costs a little")
    parser.add_argument("--no-floor", action="store_true", help="do not measure the floor")
    parser.add_argument("--webhook", action="store_true", help="measure beside a webhook of the app, too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    results: dict[str, Measured] = {}
    disk: dict[str, dict[str, float]] = {}
    if not options.no_floor:
        results["floor"], disk["two pages on the disk"] = floor(options)
    with tempfile.TemporaryDirectory() as data:
        results["carillon up"], stages = carillon(options, Path(data))
    if options.webhook:
        results["with a webhook"] = beside_a_webhook(options)
    rows = {name: measured.row() for name, measured in results.items()}
    cpu = {
        name: {"ms_per_push": round(ms, 3)}
        for measured in results.values()
        for name, ms in measured.cpu_per_push_ms().items()
    }
    if options.json:
        settings = {"rate": options.rate, "devices": options.devices}
        print(json.dumps({**settings, **rows, **disk, "cpu": cpu, "stages": stages}))
        return
    print_table(f"request to frame, {options.rate:.0f} pushes/s, {options.devices} devices", rows)
    print_table("CPU time by process and thread", cpu)
    if disk:
        print_table("the floor of a commit of the log", disk)
    if stages:
        print_table("where the time goes", stages)


if __name__ == "__main__":
    main()
