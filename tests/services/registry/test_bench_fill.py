"""The benchmarks write the devices of a large installation into the log; the registry would have written the same."""

from collections.abc import Sequence
from pathlib import Path

from bench.growth.fill import register
from protos.runtime.v1.log_pb2 import Position
from services.domain.topics import DEVICE_COMMANDS, DEVICES, TOPICS
from services.log.port import Log, NewRecord, Record
from services.log.sqlite.log import SqliteLog
from tests.services.registry.conftest import PARTITIONS, RunningRegistry, records

_DEVICES = 300


async def test_the_filled_facts_equal_those_that_the_registry_decides(
    registry: RunningRegistry, tmp_path: Path
) -> None:
    app = await registry.app()
    filled = SqliteLog(tmp_path / "filled.sqlite", TOPICS)
    announced = await _copied(await records(registry.log, DEVICES.name), filled)
    columns = await register(filled, registry.clock, app, PARTITIONS, {}, _DEVICES)
    commands = await records(filled, DEVICE_COMMANDS.name)
    expected = await records(filled, DEVICES.name)
    await filled.close()
    offsets = await _copied(commands, registry.log)
    decided = [
        Position(topic=command.topic, partition=command.partition, offset=offset)
        for command, offset in zip(commands, offsets, strict=True)
    ]
    await registry.peers.wait_applied(decided)
    assert await records(registry.log, DEVICES.name) == expected
    assert len(columns) == len(expected) - len(announced) == _DEVICES
    assert len(announced) == PARTITIONS


async def _copied(found: Sequence[Record], log: Log) -> list[int]:
    """Append the records to another log; return their offsets there."""
    return await log.append([NewRecord(each.topic, each.partition, each.key, each.value) for each in found])
