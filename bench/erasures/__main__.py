"""What the erasure of a person costs where there are many devices: `python -m bench.erasures --devices 1000000`.

The files of a stopped registry are filled with devices that their log does not have. `carillon up` then erases
persons of one device each, one after the other, and the time until each answer is noted. Behind that the registry's
larger file is purged while a writer commits a row every 10 ms, twice, as the first purge finds the most to overwrite.
At the end VACUUM does the same to the file, during which nobody can write.
"""

import argparse
import asyncio
import hashlib
import json
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.programs import note
from carillon.commands.role_calls import SOCKET_NAME
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID
from protos.registry.v1.devices_pb2 import Attributes, Device
from protos.registry.v1.registry_pb2 import ErasePersonRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.topics import device_key
from services.log.topics import partition_of
from services.net.rpc.channel import connect
from services.registry.address_index import ADDRESSES_DDL
from services.registry.resealing import PROGRESS_FILE
from services.registry.store import ALIASES_DDL, ALIASES_FILE, DEVICES_DDL, DEVICES_FILE, AliasTable, DeviceTable
from services.replica import sqlite_purge
from services.replica.sqlite_store import SqliteStore
from testkit.installation.processes import Installation

_PARTITIONS = 32
_COMMIT = 20_000
_PAUSE_S = 0.01


def device(appkey: str, number: int, numbers: list[int]) -> Device:
    token = hashlib.blake2b(str(number).encode(), digest_size=18).hexdigest()
    partition = partition_of(device_key(appkey, token), _PARTITIONS)
    numbers[partition] += 1
    return Device(
        appkey=appkey,
        token=token,
        alias=f"user-{number}",
        partition=partition,
        number=numbers[partition],
        platform=PLATFORM_ANDROID,
        registered_ms=1_790_000_000_000 + number,
        tags=[1, 2, 3],
        attributes=Attributes(model="Pixel 9", brand="Google", region="Berlin", app_version="1.2.3"),
    )


def fill(directory: Path, appkey: str, count: int) -> None:
    """Put devices with an alias each into the registry's files."""
    devices = SqliteStore(directory / DEVICES_FILE, DEVICES_DDL)
    aliases = SqliteStore(directory / ALIASES_FILE, ALIASES_DDL + ADDRESSES_DDL)
    device_table, alias_table, numbers = DeviceTable(devices), AliasTable(aliases), [0] * _PARTITIONS
    for first in range(0, count, _COMMIT):
        for store in (devices, aliases):
            store.begin()
        for number in range(first, min(first + _COMMIT, count)):
            made = device(appkey, number, numbers)
            device_table.put(made)
            alias_table.set_alias(made)
        for store in (devices, aliases):
            store.commit({})
    for store in (devices, aliases):
        store.close()
    (directory / PROGRESS_FILE).write_text("[null, true]")


async def erase(data: Path, appkey: str, numbers: list[int]) -> list[float]:
    """Erase the persons; return the seconds until each answer."""
    channel = connect(f"unix:{data / SOCKET_NAME}")
    registry, took = RegistryServiceStub(channel), []
    for number in numbers:
        began = time.monotonic()
        await registry.ErasePerson(ErasePersonRequest(appkey=appkey, alias=f"user-{number}"))
        took.append(time.monotonic() - began)
    await channel.close()
    return took


def purge_beside_writer(path: Path, until: int) -> tuple[float, float]:
    """Purge the file; return how long that took, and how long a writer waited at most for a commit."""
    waits, ended = [0.0], threading.Event()

    def write() -> None:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as rows:
            while not ended.wait(_PAUSE_S):
                began = time.monotonic()
                rows.execute("INSERT OR REPLACE INTO activity VALUES ('1', 0, 1, ?)", (time.time_ns(),))
                waits.append(time.monotonic() - began)

    writer = threading.Thread(target=write)
    writer.start()
    began = time.monotonic()
    command = [sys.executable, "-m", sqlite_purge.__name__, str(path), str(until)]
    while subprocess.run(command, check=False).returncode == sqlite_purge.BUSY:
        note("a purge begins anew")
    took = time.monotonic() - began
    ended.set()
    writer.join()
    return took, max(waits)


def vacuum(path: Path) -> float:
    began = time.monotonic()
    with closing(sqlite3.connect(path, isolation_level=None)) as rows:
        rows.execute("VACUUM")
        rows.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return time.monotonic() - began


def measure(data: Path, devices: int, persons: int) -> dict[str, float]:
    installation = Installation(data, None)
    installation.env |= {"CARILLON_PARTITIONS": str(_PARTITIONS), "CARILLON_LOG_LEVEL": "WARNING"}
    try:
        installation.start()
        appkey = installation.create_app().appkey
        installation.carillon("keys", "seal", "--json")
        installation.stop()
        note("filling the registry's files")
        fill(data / "registry", appkey, devices)
        installation.start()
        note("erasing")
        took = sorted(asyncio.run(erase(data, appkey, random.Random(46).sample(range(devices), persons))))
        installation.stop()
    finally:
        installation.close()
    note("purging")
    file = data / "registry" / DEVICES_FILE
    first, waited = purge_beside_writer(file, 1)
    second, waited_again = purge_beside_writer(file, 2)
    return {
        "answer p50 ms": took[len(took) // 2] * 1000,
        "answer p99 ms": took[int(len(took) * 0.99)] * 1000,
        "answer max ms": took[-1] * 1000,
        "file MB": file.stat().st_size / 1e6,
        "purge s": first,
        "longest wait of a writer ms": waited * 1000,
        "purge again s": second,
        "longest wait of a writer again ms": waited_again * 1000,
        "VACUUM s": vacuum(file),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=100_000, metavar="N", help="default: 100000")
    parser.add_argument("--persons", type=int, default=200, metavar="N", help="persons that are erased; default: 200")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="carillon-bench-") as name:
        found = measure(Path(name) / "data", options.devices, options.persons)
    if options.json:
        print(json.dumps({"devices": options.devices, "persons": options.persons, **found}))
        return
    table = Table("", "measured", title=f"{options.devices:,} devices, {options.persons} persons erased")
    for what, value in found.items():
        table.add_row(what, f"{value:,.1f}")
    Console(width=90).print(table)


if __name__ == "__main__":
    main()
