"""Benchmark of webhooks: how late outcomes reach a receiver, beside receivers that do not answer.

    python -m bench.webhooks --rate 1000 --seconds 60 --silent 3

The role runs in this process on an embedded log, to which outcomes are appended as delivery does it, every 50 ms; the
receiver is a process of its own. The time of an event is that of its outcome before it is appended, so its way leads
through the disk, the role, the look-up of the device's token, and HTTP. CPU time is that of this process, which writes
the outcomes and answers for the registry too. `--silent` receivers take connections and never answer.
"""

import argparse
import asyncio
import json
import struct
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.programs import Program
from protos.delivery.v1.delivery_pb2 import AppOutcomes, DeliveryFact, OutcomeKind, Outcomes
from protos.registry.v1.apps_pb2 import WEBHOOK_FORM_STANDARD, App, AppFact, Webhook
from protos.registry.v1.registry_pb2 import GetTokensRequest, GetTokensResponse
from protos.registry.v1.registry_pb2_grpc import RegistryServiceServicer, add_RegistryServiceServicer_to_server
from protos.runtime.v1.log_pb2 import Meta
from services.domain.apps import AppDirectory
from services.domain.ids import event_id
from services.domain.master_key import MasterKey
from services.domain.role import RoleContext
from services.domain.topics import APPS, DELIVERIES, TOPICS
from services.domain.webhooks import new_secret, seal_secret
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from services.net.rpc.local import LocalServer
from services.net.rpc.server import Context
from services.process.clock import SystemClock
from services.replica.peers import Peers
from services.webhooks.main import ROLE, build
from services.webhooks.service import WebhookService
from services.webhooks.settings import WebhooksSettings
from testkit.ports import free_ports
from testkit.services import running_services
from testkit.waiting import until_holds
from testkit.webhook_receiver import WebhookReceiver, silent

APP = "1000000001"
PARTITIONS = 8
EVERY_S = 0.05
DEVICES = 10_000


class Registry(RegistryServiceServicer):
    """Knows the token of every device."""

    async def GetTokens(self, request: GetTokensRequest, context: Context) -> GetTokensResponse:
        return GetTokensResponse(tokens=[f"{request.partition:016x}{number:048x}" for number in request.numbers])


def outcomes(count: int, first: int) -> bytes:
    """Return a record with that many outcomes, which are of now."""
    now_ms = SystemClock().now_ms()
    of_app = AppOutcomes(
        appkey=APP,
        msgids=struct.pack(f"<{count}Q", *(7 for _ in range(count))),
        numbers=struct.pack(f"<{count}I", *((first + row) % DEVICES for row in range(count))),
        kinds=bytes([OutcomeKind.OUTCOME_KIND_RECEIVED]) * count,
        times_ms=struct.pack(f"<{count}q", *(now_ms for _ in range(count))),
        reason_indexes=bytes(count),
    )
    meta = Meta(event_id=event_id(), time_ms=now_ms)
    return DeliveryFact(meta=meta, outcomes=Outcomes(apps=[of_app])).SerializeToString()


async def append_for(log: SqliteLog, rate: int, seconds: float) -> int:
    """Append outcomes at this rate; return how many."""
    begun, written, turn = time.monotonic(), 0, 0
    while (passed := time.monotonic() - begun) < seconds:
        if count := int(passed * rate) - written:
            partition = turn % PARTITIONS
            await log.append([NewRecord(DELIVERIES.name, partition, b"p", outcomes(count, written))])
            written, turn = written + count, turn + 1
        await asyncio.sleep(EVERY_S)
    return written


async def measure(rate: int, seconds: float, silent_ones: int, directory: Path) -> dict[str, float]:
    port, *others = free_ports(1 + silent_ones)
    receiver = Program([sys.executable, "-m", "bench.webhooks.receiver", str(port)], core=None)
    receiver.receive()
    keys = MasterKey(bytes(32)).only(ROLE.keys)
    log = SqliteLog(directory / "log.db", TOPICS, partitions=PARTITIONS)
    registry = LocalServer()
    add_RegistryServiceServicer_to_server(Registry(), registry)  # type: ignore[arg-type, abstract]
    apps = AppDirectory(log)
    context = RoleContext(log, SystemClock(), Peers({"registry": [registry.channel()]}, TOPICS), keys, apps)
    hosts = [f"127.0.0.1:{each}" for each in (port, *others)]
    app = App(appkey=APP)
    for number, host in enumerate(hosts):
        made = Webhook(webhook_id=f"{number:016x}", url=f"http://{host}/", form=WEBHOOK_FORM_STANDARD)
        made.sealed_secret = seal_secret(new_secret(), APP, made.webhook_id, keys)
        made.created_ms = context.clock.now_ms()
        app.webhooks.append(made)
    fact = AppFact(meta=Meta(event_id=event_id(), time_ms=context.clock.now_ms()), app=app)
    await log.append([NewRecord(APPS.name, 0, APP.encode(), fact.SerializeToString())])
    slow = [WebhookReceiver(each) for each in others]
    for each in slow:
        each.always = silent
        await each.start()
    settings = WebhooksSettings(data_dir=str(directory), partitions=PARTITIONS, webhook_hosts=",".join(hosts))
    role = build(settings, context)
    (service,) = (each for each in role.services if isinstance(each, WebhookService))
    async with running_services([apps, *role.services]):
        await until_holds(lambda: len(service.senders) == len(hosts))
        begun_cpu_s = time.process_time()
        written = await append_for(log, rate, seconds)
        deadline = time.monotonic() + 60
        while (found := receiver.request("count"))[0] < written and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
        cpu_us = (time.process_time() - begun_cpu_s) / written * 1e6
        for each in slow:
            await each.stop()
    await log.close()
    receiver.process.kill()
    events, requests, repeated, p50_ms, p99_ms, most_ms = found
    return {
        "written": written,
        "arrived": events,
        "requests": requests,
        "repeated": repeated,
        "p50_ms": p50_ms,
        "p99_ms": p99_ms,
        "most_ms": most_ms,
        "cpu_us": round(cpu_us, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.webhooks", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rate", type=int, default=1_000, help="outcomes a second (1000)")
    parser.add_argument("--seconds", type=float, default=60, help="how long (60)")
    parser.add_argument("--silent", type=int, default=0, help="webhooks whose receiver never answers (0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = asyncio.run(measure(given.rate, given.seconds, given.silent, Path(directory)))
    if given.json:
        print(json.dumps({"rate": given.rate, "silent": given.silent, **found}))
        return
    table = Table("", f"{given.rate:,} outcomes/s, {given.silent} silent receivers")
    for name, value in found.items():
        table.add_row(name, f"{value:,}")
    Console().print(table)


if __name__ == "__main__":
    main()
