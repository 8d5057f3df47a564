"""The edge role: the app servers' doors."""

import asyncio
from typing import Annotated

import msgspec

from edge.android.app import android_app
from edge.core.parsing.body import Application, TimedBodies
from edge.ios.app import ios_app
from edge.v2.app import v2_app
from services.domain.ids import MessageIds, claim_worker
from services.domain.role import Role, RoleContext
from services.runtime.http.listener import HttpListener
from services.runtime.process.settings import Port, Positive, Settings


class EdgeSettings(Settings, frozen=True, kw_only=True):
    """`timed_min_lead_s`: how far ahead timed messages of the legacy interface must lie, up to three days."""

    android_port: Port = 8001
    ios_port: Port = 8200
    v2_port: Port = 8300
    edge_workers: Positive = 1
    timed_min_lead_s: Annotated[int, msgspec.Meta(ge=0, le=259_200)] = 600

    @property
    def door_ports(self) -> tuple[int, int, int]:
        return self.android_port, self.ios_port, self.v2_port


SETTINGS = EdgeSettings


class Doors:
    """The doors' applications. They share a worker number for message ids, held until `close`."""

    def __init__(self, settings: EdgeSettings, context: RoleContext) -> None:
        worker, self._claim = claim_worker(settings.state_dir("edge"), settings.shard, settings.shards)
        ids = MessageIds(context.clock, worker, self._claim)
        self.android: Application = TimedBodies(android_app(settings, settings.timed_min_lead_s, context, ids))
        self.ios: Application = TimedBodies(ios_app(settings, context, ids))
        self.v2: Application = TimedBodies(v2_app(settings, context, ids))

    def by_port(self, settings: EdgeSettings) -> dict[int, Application]:
        return dict(zip(settings.door_ports, (self.android, self.ios, self.v2), strict=True))

    def close(self) -> None:
        self._claim.close()


def build(settings: EdgeSettings, context: RoleContext) -> Role:
    """The doors as services of this process."""
    doors = Doors(settings, context)
    return Role(
        "edge",
        [
            _Claim(doors),
            HttpListener("the legacy Android door", doors.android, settings.host, settings.android_port),
            HttpListener("the legacy iOS door", doors.ios, settings.host, settings.ios_port),
            HttpListener("the v2 door", doors.v2, settings.host, settings.v2_port),
        ],
    )


class _Claim:
    """Gives the worker number back when all doors are closed."""

    name = "message ids"

    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            self._doors.close()
