"""Benchmark of a cluster: the CPU time of each process while nothing is sent, and for each push.

    python -m bench.cluster --devices 100 --rate 12 --seconds 30

Starts three Kafka brokers, two edges and two gateways behind HAProxy, and two processes of each role that can have a
standby. Connects devices, measures while nothing is sent, then while an app server sends `rate` pushes a second, each
to one device that shows it. `idle` is the share of one core in percent, `pushes` the same under load, and `ms a push`
what the load adds, for each push. --threads lists the threads of each process. The load itself, HAProxy and the start
are not counted.
"""

import argparse
import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

import psutil
from rich.console import Console
from rich.table import Table

from testkit.device import VirtualDevice
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.cluster import ClusterInstallation
from testkit.kafka.cluster import KafkaCluster

_SETTLED_S = 8.0
_SHOWN_S = 30.0
CpuTimes = Mapping[str, float]


class ClusterCosts(NamedTuple):
    """The share of a core that each process takes, in percent: `idle`, and `loaded` with pushes.

    `shown_ms`: for each push the time from its request until the device shows it.
    """

    idle: CpuTimes
    loaded: CpuTimes
    shown_ms: list[float]

    @property
    def processes(self) -> list[str]:
        return sorted(self.idle, key=lambda name: -self.loaded[name])


class Processes:
    """The processes of the cluster, brokers included. `by_thread`: each thread is one row."""

    def __init__(self, installation: ClusterInstallation, cluster: KafkaCluster, by_thread: bool) -> None:
        self._processes = {name: psutil.Process(installation.process_id(name)) for name in installation.names}
        for number, broker in enumerate(cluster.brokers, 1):
            self._processes[f"broker {number}"] = psutil.Process(broker.process_id)
        self._by_thread = by_thread

    async def shares(self, seconds: float) -> CpuTimes:
        """Wait for some seconds; return the share of a core that each process took meanwhile, in percent."""
        before, begun_s = self._cpu_s(), time.monotonic()
        await asyncio.sleep(seconds)
        after, passed_s = self._cpu_s(), time.monotonic() - begun_s
        return {name: (after[name] - before.get(name, 0)) / passed_s * 100 for name in after}

    def _cpu_s(self) -> CpuTimes:
        found: dict[str, float] = {}
        for name, process in self._processes.items():
            if self._by_thread:
                for thread in process.threads():
                    comm = Path(f"/proc/{process.pid}/task/{thread.id}/comm").read_text(encoding="utf-8").strip()
                    row = f"{name}: {comm}"
                    found[row] = found.get(row, 0.0) + thread.user_time + thread.system_time
            else:
                for each in (process, *process.children(recursive=True)):
                    times = each.cpu_times()
                    found[name] = found.get(name, 0.0) + times.user + times.system
        return found


class Load:
    """An app server that pushes to one device after the other, at a fixed rate."""

    def __init__(self, installation: ClusterInstallation, app: AppCredentials, devices: int) -> None:
        self._app = app
        self._server = AppServer(installation.v2_url)
        self._devices = [VirtualDevice(installation.gateway_url, app.appkey) for _ in range(devices)]
        self.shown_ms: list[float] = []

    async def connect(self) -> None:
        for device in self._devices:
            await device.connect()

    async def run(self, rate: float) -> None:
        """Push until cancelled."""
        begun_s = time.monotonic()
        async with asyncio.TaskGroup() as pushes:
            number = 0
            while True:
                pushes.create_task(self._push(self._devices[number % len(self._devices)], f"push {number}"))
                number += 1
                await asyncio.sleep(max(0, begun_s + number / rate - time.monotonic()))

    async def _push(self, device: VirtualDevice, content: str) -> None:
        begun_s = time.monotonic()
        body = {
            "sendTo": {"appkey": {"android": self._app.appkey}, "userScope": 5, "token": {"android": [device.token]}},
            "msgStyle": {"basic": {"content": content, "is_notif": 1}, "android": {"title": "T", "sound": True}},
            "option": {"period": 86400},
        }
        answer = await self._server.push(body, self._app.secret_key)
        assert answer["result"] == 0, answer
        async with asyncio.timeout(_SHOWN_S):
            while (await device.events.get()).get("content") != content:
                pass
        self.shown_ms.append((time.monotonic() - begun_s) * 1000)

    async def close(self) -> None:
        for device in self._devices:
            await device.close()
        await self._server.close()


@contextlib.contextmanager
def running_cluster(directory: Path) -> Iterator[tuple[ClusterInstallation, KafkaCluster]]:
    cluster = KafkaCluster(directory / "kafka")
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.start()
        installation = stack.enter_context(contextlib.closing(ClusterInstallation(directory / "data", cluster)))
        installation.start_balancer()
        installation.start()
        yield installation, cluster


async def measure(load: Load, processes: Processes, rate: float, seconds: float) -> ClusterCosts:
    await load.connect()
    await asyncio.sleep(_SETTLED_S)
    idle = await processes.shares(seconds)
    running = asyncio.create_task(load.run(rate))
    await asyncio.sleep(_SETTLED_S)
    load.shown_ms.clear()
    loaded = await processes.shares(seconds)
    running.cancel()
    await asyncio.wait([running])
    await load.close()
    return ClusterCosts(idle, loaded, load.shown_ms)


def table_of(found: ClusterCosts, rate: float) -> Table:
    table = Table("process", "idle, % of a core", "pushes, % of a core", "ms a push")
    for name in [*found.processes, "all"]:
        idle, loaded = (
            sum(each.values()) if name == "all" else each.get(name, 0.0) for each in (found.idle, found.loaded)
        )
        table.add_row(name, f"{idle:.1f}", f"{loaded:.1f}", f"{(loaded - idle) * 10 / rate:.1f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=100, help="connected devices")
    parser.add_argument("--rate", type=float, default=12, help="pushes a second")
    parser.add_argument("--seconds", type=float, default=30, help="of each measurement, idle and loaded")
    parser.add_argument("--threads", action="store_true", help="one row for each name of a thread")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, running_cluster(Path(directory)) as (installation, cluster):
        processes = Processes(installation, cluster, options.threads)
        load = Load(installation, installation.create_app(), options.devices)
        found = asyncio.run(measure(load, processes, options.rate, options.seconds))
    if options.json:
        print(json.dumps(found._asdict()))
        return
    Console(width=100).print(table_of(found, options.rate))
    slowest = quantiles(found.shown_ms, n=100)
    print(f"{len(found.shown_ms)} pushes; shown after {slowest[49]:.0f} ms (median), {slowest[98]:.0f} ms (p99)")


if __name__ == "__main__":
    main()
