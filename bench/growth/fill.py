"""Fills the event log of an installation that is not running with the records that its roles would have written.

The roles fold them at their next start, as they do when their state is rebuilt. Devices are registered in the order of
their tokens, so that the trees of the files grow at their ends; where tokens come in any order, as in production, each
device changes a page of its own.
"""

import secrets
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.growth.records import DeviceColumns, Registrations, push, push_record, starts
from bench.programs import note
from carillon.progress_bar import progress_bar
from protos.registry.v1.apps_pb2 import App
from services.domain.role import RoleContext
from services.domain.role_context import role_context
from services.domain.settings import Settings, load
from services.domain.topics import DEVICES, TOPICS, decode
from services.log.port import Log, NewRecord, Partition
from services.process.clock import Clock
from services.registry.store import DEVICES_FILE
from services.replica.peers import Peers
from testkit.delivery.message_ids import SoleWriterIds

_DEVICES_AT_ONCE = 20_000
_PUSHES_AT_ONCE = 100


class Rows:
    """The devices of an app in the registry's file."""

    def __init__(self, data: Path, appkey: str) -> None:
        self._path = data / "registry" / DEVICES_FILE
        self._appkey = appkey

    def next_numbers(self) -> dict[int, int]:
        """Return the next free device number by partition."""
        query = "SELECT partition, max(number) + 1 FROM devices WHERE appkey = ? GROUP BY partition"
        return dict(self._select(query, ()))

    def credentials(self, count: int, partitions: int) -> list[tuple[str, int]]:
        """Return token and device number of `count` devices that have no undelivered message."""
        query = "SELECT token, number FROM devices WHERE appkey = ? AND partition = ? AND number < ?"
        end = without_message(count, partitions)
        return [row for partition in range(partitions) for row in self._select(query, (partition, end))][:count]

    def _select(self, query: str, parameters: tuple[int, ...]) -> list[Any]:
        connection = sqlite3.connect(self._path)
        try:
            return connection.execute(query, (self._appkey, *parameters)).fetchall()
        finally:
            connection.close()


def without_message(connected: int, partitions: int) -> int:
    """Return the device number below which devices get no message, so that at least `connected` get none."""
    return -(-connected // partitions)


async def fill(env: Mapping[str, str], appkey: str, devices: int, connected: int, targets: int) -> None:
    """Register devices until the app has `devices`, and start pushes for the new ones, each for `targets` devices.

    The first `connected` devices get no push.
    """
    settings = load(Settings, env)
    next_numbers = Rows(settings.data, appkey).next_numbers()
    async with role_context(settings, Peers({}, TOPICS)) as context:
        app = context.apps.get(appkey)
        assert app is not None
        count = devices - sum(next_numbers.values())
        columns = await register(context.log, context.clock, app, settings.partitions, next_numbers, count)
        columns = columns.from_number(without_message(connected, settings.partitions))
        await _push(context, appkey, settings.partitions, columns, targets)


async def register(
    log: Log, clock: Clock, app: App, partitions: int, next_numbers: dict[int, int], count: int
) -> DeviceColumns:
    """Append the records of `count` devices that register; return their partitions and numbers."""
    registrations = Registrations(app, partitions, next_numbers, await _epochs(log, partitions))
    parts: list[DeviceColumns] = []
    facts: list[NewRecord] = []
    with progress_bar(shown=True) as bar:
        note(f"{count:,} devices are registered")
        bar.begin("devices", 2 * count)
        for tokens in _tokens(count):
            now_ms = clock.now_ms()
            commands = registrations.commands(tokens, now_ms)
            offsets = await log.append([*facts, *commands])
            bar.advance(len(offsets))
            part, facts = registrations.facts(tokens, now_ms, commands, offsets[len(facts) :])
            parts.append(part)
        await log.append(facts)
        bar.advance(len(facts))
    return DeviceColumns.joined(parts)


async def _epochs(log: Log, partitions: int) -> dict[int, int]:
    """Return the epochs of the last records of devices, by partition: readers refuse records with lower ones."""
    last = [await log.last(Partition(DEVICES.name, number)) for number in range(partitions)]
    return {number: decode(record).meta.epoch for number, record in enumerate(last) if record}


def _tokens(count: int) -> Iterator[list[str]]:
    """Yield ascending tokens, some thousands at a time."""
    for at in range(0, count, _DEVICES_AT_ONCE):
        ends = range(at, min(at + _DEVICES_AT_ONCE, count))
        yield [f"{(number << 32) // count:08x}{secrets.token_hex(12)}" for number in ends]


async def _push(context: RoleContext, appkey: str, partitions: int, columns: DeviceColumns, targets: int) -> None:
    ids = SoleWriterIds(context.clock)
    each = list(columns.parts(targets))
    with progress_bar(shown=True) as bar:
        note(f"{len(columns):,} messages are sent, {targets:,} a push")
        bar.begin("pushes", len(each) * (1 + partitions))
        for at in range(0, len(each), _PUSHES_AT_ONCE):
            now_ms = context.clock.now_ms()
            commands = [push(ids, appkey, of_push, now_ms) for of_push in each[at : at + _PUSHES_AT_ONCE]]
            offsets = await context.log.append([push_record(command) for command in commands])
            started = [
                record
                for command, offset in zip(commands, offsets, strict=True)
                for record in starts(command, offset, partitions)
            ]
            await context.log.append(started)
            bar.advance(len(commands) + len(started))
