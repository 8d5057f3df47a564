"""What keys of persons and sealed records cost: `python -m bench.sealing --subjects 20000 --erased 1000`.

First the keys alone: a name, a key that was not asked for before and one that was, the destruction of a key, and what
the keys occupy after so many. Then pushes to one device each, in two logs of which one seals, in turn: records are
sealed and appended, read, opened and decoded, once with keys that were not asked for before and once with those at
hand. CPU time of this process, the median of rounds; the share is of what a push costs all processes (`--push-us`).
"""

import argparse
import asyncio
import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from protos.push.v1.push_pb2 import Audience, Devices, Kind, Message, PushCommand, SendPush
from protos.runtime.v1.log_pb2 import Meta, Origin
from services.domain.person_keys import KeyFiles, KeyRing
from services.domain.sealed_log import SealedLog
from services.domain.sealing import Sealer
from services.domain.topics import PUSH_COMMANDS, TOPICS, decode
from services.log.port import Log, NewRecord, Partition
from services.log.sqlite.log import SqliteLog

_ROUNDS = 5
_PARTITION = Partition(PUSH_COMMANDS.name, 0)


def per_call_us(call: Callable[[bytes], object], hashes: Sequence[bytes]) -> float:
    """Return the CPU time of a call in microseconds."""
    started = time.process_time()
    for each in hashes:
        call(each)
    return (time.process_time() - started) / len(hashes) * 1e6


def keys(directory: Path, subjects: int, erased: int) -> dict[str, str]:
    """Return what the keys cost."""
    ring = KeyRing(KeyFiles.create(directory))
    hashes = [ring.subject("number", "1", "2", str(number)) for number in range(subjects)]
    gone = [ring.subject("erased", str(number)) for number in range(erased)]
    found = {
        "a name": per_call_us(lambda each: ring.name("token", "1", each.hex()), hashes),
        "a key, cold": per_call_us(ring.cipher, hashes),
        "a key, held": per_call_us(ring.cipher, hashes[-1000:]),
    }
    started, before = time.monotonic(), time.process_time()
    for each in gone:
        ring.puncture(each)
    took, cpu = time.monotonic() - started, time.process_time() - before
    size = sum(file.stat().st_size for file in directory.iterdir())
    started = time.process_time()
    again = KeyRing(KeyFiles(directory))
    for each in hashes:
        again.is_punctured(each)
    loaded = (time.process_time() - started) / subjects * 1e6
    return {
        **{what: f"{us:.1f} us" for what, us in found.items()},
        "a key destroyed": f"{took / erased * 1e3:.2f} ms, {cpu / erased * 1e3:.2f} ms of CPU",
        f"keys on the disk after {erased}": f"{size / 1024:.0f} KB, {(size - 65_000) / erased:.0f} bytes each",
        "a leaf after a start, blocks loaded as needed": f"{loaded:.1f} us",
    }


def push(number: int) -> NewRecord:
    devices = Devices(
        partitions=np.array([2], "<u2").tobytes(),
        numbers=np.array([number], "<u4").tobytes(),
        id_offsets=np.array([0], "<u4").tobytes(),
    )
    send = SendPush(msgid=number, id_count=1, appkey="1", kind=Kind.KIND_UNICAST, audience=Audience(devices=devices))
    send.message.CopyFrom(Message(content="Your parcel arrives today between 14 and 16.", extra='{"order":"4711"}'))
    send.request_json = (
        '{"audience":{"tokens":["0123456789abcdef0123456789abcdef0123"]},"message":{"content":"Your parcel"}}'
    )
    origin = Origin(interface="v2", address="192.0.2.7", request_id="0123456789abcdef")
    meta = Meta(event_id=bytes(16), time_ms=time.time_ns() // 1_000_000, writer="edge", origin=origin)
    return NewRecord(*_PARTITION, str(number).encode(), PushCommand(meta=meta, send=send).SerializeToString())


async def through(log: Log, new_records: Sequence[NewRecord]) -> float:
    """Append the records, read and decode them; return the CPU time of each in microseconds."""
    begin = (await log.ends([_PARTITION]))[_PARTITION]
    started = time.process_time()
    for at in range(0, len(new_records), 50):
        await log.append(new_records[at : at + 50])
    reader = await log.open({_PARTITION: begin})
    count = 0
    while count < len(new_records):
        for record in await reader.read():
            decode(record)
            count += 1
    spent = time.process_time() - started
    await reader.close()
    return spent / len(new_records) * 1e6


async def records(directory: Path, subjects: int) -> dict[str, dict[str, float]]:
    """Return the CPU time of a push in both logs."""
    plain = SqliteLog(directory / "plain.sqlite", TOPICS)
    below = SqliteLog(directory / "sealed.sqlite", TOPICS)
    found: dict[str, dict[str, list[float]]] = {}
    for round_number in range(_ROUNDS):
        ring = KeyRing(KeyFiles.create(directory / f"round{round_number}"))
        sealed = SealedLog(below, Sealer(ring), seals=True)
        made = [push(number) for number in range(subjects)]
        logs: dict[str, Log] = {"plain": plain, "sealed": sealed}
        for what, arm in itertools.product(("cold", "held"), logs):
            found.setdefault(what, {}).setdefault(arm, []).append(await through(logs[arm], made))
    await plain.close()
    await below.close()
    return {what: {arm: median(each) for arm, each in arms.items()} for what, arms in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subjects", type=int, default=20_000, help="devices")
    parser.add_argument("--erased", type=int, default=1000, help="keys to destroy")
    parser.add_argument("--push-us", type=float, default=1340, help="CPU time of a push in all processes")
    given = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as name:
        table = Table("keys", "cost")
        for what, cost in keys(Path(name) / "persons", given.subjects, given.erased).items():
            table.add_row(what, cost)
        console.print(table)
        table = Table("CPU of a push's record, us", "plain", "sealed", "more", f"share of {given.push_us:.0f} us")
        for what, arms in asyncio.run(records(Path(name), given.subjects)).items():
            more = arms["sealed"] - arms["plain"]
            table.add_row(
                f"keys {what}",
                f"{arms['plain']:.1f}",
                f"{arms['sealed']:.1f}",
                f"{more:.1f}",
                f"{more / given.push_us:.1%}",
            )
        console.print(table)


if __name__ == "__main__":
    main()
