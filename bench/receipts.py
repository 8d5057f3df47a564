"""Benchmark of receipts: how many a second the edge takes from vendors, with a real registry in the same process.

    python -m bench.receipts --receipts 200000

Each call has 1,000 receipts of 1,000 phones, from the vendor's text to the call that records them at delivery, which
here stores them in a list. Beside each vendor stands the floor: the vendor's JSON decoded, and nothing else.
"""

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from urllib.parse import urlencode

from rich.console import Console
from rich.table import Table

from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App, Channel
from protos.registry.v1.devices_pb2 import DeviceCommand, RegisterDevice, SetAddress
from protos.registry.v1.registry_pb2 import ChannelChange, UpdateAppRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.log_pb2 import Meta, Position
from services.domain.addresses import named_channel
from services.domain.channel_credentials.stored import settings_of
from services.domain.channel_receipts.receipts import ReceiptTags
from services.domain.ids import event_id
from services.domain.master_key import MasterKey
from services.domain.topics import DEVICE_COMMANDS, device_key
from services.log.port import NewRecord
from services.log.topics import partition_of
from testkit.edge.role import BACKENDS, PARTITIONS, EdgeInstallation, edge_installation

PHONES = 1_000
FIELDS = {
    "hms": {"client_id": "1", "client_secret": "x", "receipts": "on"},
    "xiaomi": {
        "package": "a.b", "app_secret": "x", "channels": "MARKETING=1", "receipts_url": "https://push.example.org",
    },
    "oppo": {"app_key": "1", "master_secret": "x", "receipts_url": "https://push.example.org"},
}  # fmt: skip


def body_of(name: str, tags: ReceiptTags, msgid: int) -> tuple[bytes, bytes]:
    """Return a call of a vendor about all phones, and the JSON in it."""
    mark, addresses = tags.tag(msgid), [f"address-{number}" for number in range(PHONES)]
    match name:
        case "hms":
            statuses = [
                {"token": each, "status": 0, "biTag": mark, "appid": "1", "timestamp": "1"} for each in addresses
            ]
            told = json.dumps({"statuses": statuses})
        case "xiaomi":
            told = json.dumps({"sdm1": {"param": mark, "type": 1, "targets": ",".join(addresses), "timestamp": 1}})
            return urlencode({"data": told}).encode(), told.encode()
        case _:
            row = {"param": mark, "eventType": "push_arrive", "registrationIds": ",".join(addresses), "taskId": "1"}
            told = json.dumps([row])
    return told.encode(), told.encode()


async def make_phones(edge: EdgeInstallation, app: App, channel: "Channel.ValueType") -> None:
    """Register phones, each with an address on the channel."""
    records = []
    for number in range(PHONES):
        token = f"phone-{number}"
        key = device_key(app.appkey, token)
        for change in (
            DeviceCommand(register=RegisterDevice(platform=PLATFORM_ANDROID)),
            DeviceCommand(set_address=SetAddress(channel=channel, address=f"address-{number}")),
        ):
            change.appkey, change.token = app.appkey, token
            change.meta.CopyFrom(Meta(event_id=event_id(), time_ms=edge.clock.now_ms(), writer="bench"))
            partition = partition_of(key, PARTITIONS)
            records.append(NewRecord(DEVICE_COMMANDS.name, partition, key, change.SerializeToString()))
    offsets = await edge.log.append(records)
    last = {record.partition: offset for record, offset in zip(records, offsets, strict=True)}
    await edge.context.peers.wait_applied(
        [Position(topic=DEVICE_COMMANDS.name, partition=partition, offset=offset) for partition, offset in last.items()]
    )


async def measure(directory: Path, name: str, receipts: int) -> tuple[float, float]:
    """Return the receipts a second of a vendor, and those of the floor."""
    async with edge_installation(directory, BACKENDS) as edge:
        channel, app = named_channel(name), await edge.app()
        changes = [ChannelChange(channel=channel, fields=FIELDS[name])]
        registry = RegistryServiceStub(edge.context.peers.all("registry")[0])
        app = (await registry.UpdateApp(UpdateAppRequest(appkey=app.appkey, channels=changes))).app
        await make_phones(edge, app, channel)
        path = f"/channels/v1/receipt/{name}/{app.appkey}/{settings_of(app, channel)['receipts']}"
        tags = ReceiptTags(app.appkey, channel, MasterKey(bytes(32)))
        made = [body_of(name, tags, msgid) for msgid in range(1, receipts // PHONES + 1)]
        begin = time.perf_counter()
        for body, _ in made:
            answer = await edge.http.post(path, content=body)
            assert answer.status_code == 200, answer
        seconds = time.perf_counter() - begin
        assert len(edge.reports.rows) == receipts // PHONES * PHONES
        begin = time.perf_counter()
        for _, told in made:
            json.loads(told)
        return receipts / seconds, receipts / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--receipts", type=int, default=200_000)
    given = parser.parse_args()
    table = Table("vendor", "receipts/s", "us each", "floor/s", title="receipts")
    for name in FIELDS:
        with tempfile.TemporaryDirectory() as directory:
            per_s, floor = asyncio.run(measure(Path(directory), name, given.receipts))
        table.add_row(name, f"{per_s:,.0f}", f"{1e6 / per_s:.1f}", f"{floor:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
