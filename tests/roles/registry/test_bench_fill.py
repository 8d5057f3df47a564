"""The benchmarks write the devices of a large installation into the log; the registry would have written the same."""

from pathlib import Path

from bench.growth.fill import register
from protos.runtime.v1.log_pb2 import Position
from services.domain.topics import DEVICE_COMMANDS, DEVICES, TOPICS
from services.runtime.log.port import NewRecord
from services.runtime.log.sqlite.log import SqliteLog
from tests.roles.registry.conftest import PARTITIONS, RunningRegistry, records

_DEVICES = 300


async def test_filled_devices_are_what_the_registry_decides_on_their_commands(
    registry: RunningRegistry, tmp_path: Path
) -> None:
    app = await registry.app()
    filled = SqliteLog(tmp_path / "filled.sqlite", TOPICS)
    places = await register(filled, registry.clock, app, PARTITIONS, {}, _DEVICES)
    commands = await records(filled, DEVICE_COMMANDS.name)
    expected = await records(filled, DEVICES.name)
    await filled.close()
    offsets = await registry.log.append([NewRecord(r.topic, r.partition, r.key, r.value) for r in commands])
    decided = [
        Position(topic=command.topic, partition=command.partition, offset=offset)
        for command, offset in zip(commands, offsets, strict=True)
    ]
    await registry.peers.wait_applied(decided)
    assert await records(registry.log, DEVICES.name) == expected
    assert len(places) == len(expected) == _DEVICES
