"""The edge role: the app servers' doors."""

import asyncio
from typing import IO

from edge.core.body import Application, TimedBodies
from edge.v2.app import v2_app
from services.runtime.config import Port, Positive, Settings
from services.runtime.http import HttpDoor
from services.runtime.ids import MessageIds, claim_worker
from services.runtime.role import Role, Surroundings


class EdgeSettings(Settings, frozen=True, kw_only=True):
    v2_port: Port = 8300
    edge_workers: Positive = 1


SETTINGS = EdgeSettings


class Doors:
    """The doors' applications. They share a worker number for message ids, held until `close`."""

    def __init__(self, settings: EdgeSettings, around: Surroundings) -> None:
        worker, self._claim = _claimed(settings)
        self.v2: Application = TimedBodies(v2_app(settings, around, MessageIds(around.clock, worker)))

    def close(self) -> None:
        self._claim.close()


def build(settings: EdgeSettings, around: Surroundings) -> Role:
    """The doors as services of this process."""
    doors = Doors(settings, around)
    return Role("edge", [_V2Door(doors, settings)])


class _V2Door(HttpDoor):
    def __init__(self, doors: Doors, settings: EdgeSettings) -> None:
        super().__init__("the v2 door", doors.v2, settings.host, settings.v2_port)
        self._doors = doors

    async def run(self, ready: asyncio.Event) -> None:
        try:
            await super().run(ready)
        finally:
            self._doors.close()


def _claimed(settings: EdgeSettings) -> tuple[int, IO[bytes]]:
    return claim_worker(settings.state_dir("edge"), settings.shard, settings.shards)
